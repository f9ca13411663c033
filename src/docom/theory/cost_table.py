"""The paper's table of computation, messages and memory per iteration (tab:comp-compl) as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from docom.theory.constants import form_of


@dataclass(frozen=True)
class CostRow:
    """Cost of one iteration for one agent; counts as coefficients of b, b0, R and d.

    Attributes:
        initial_gradients, gradients: in samples, as text in b and b0.
        vectors_sent: vectors of length d sent to each neighbour, `R` times where `per_round`.
        printed_messages: the entry of the paper's table.
        memory: vectors of length d kept, in the paper's count.
        memory_in_place: the least we know of, reusing buffers.
        correction: what our count changes, empty where nothing.
    """

    method: str
    initial_gradients: str
    gradients: str
    vectors_sent: int
    per_round: bool
    printed_messages: str
    compressed: bool
    memory: int
    memory_in_place: int
    correction: str = ""

    def evaluate(
        self, *, b: float = 1, b0: float = 1, d: float = 1, R: int = 1, printed: bool = False
    ) -> dict[str, Any]:
        """Samples, messages, numbers kept, for batch b, initial batch b0, dimension d and R rounds."""
        samples = {"b": b, "2b": 2 * b, "b0": b0}
        messages = self.vectors_sent * (R if self.per_round else 1)
        if printed and self.per_round:
            messages = R
        return {
            "initial_gradients": samples[self.initial_gradients],
            "gradients": samples[self.gradients],
            "messages": messages,
            "memory": (self.memory if printed else self.memory_in_place) * d,
            "form": form_of(printed),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the paper's entries, ours beside them, and the reason where they differ."""
        rounds = " R" if self.per_round else ""
        compressed = " (compressed)" if self.compressed else ""
        return {
            **asdict(self),
            "messages": f"{self.vectors_sent}{rounds}{compressed}",
            "memory": f"{self.memory}d",
            "memory_in_place": f"{self.memory_in_place}d",
        }


_COST_ROWS: tuple[CostRow, ...] = (
    CostRow("GNSD", "b", "b", 2, False, "2", False, 3, 3),
    CostRow(
        "DeTAG",
        "b",
        "b",
        2,
        True,
        "R",
        False,
        3,
        3,
        "R counts rounds of two vectors, the other rows count vectors: 2R here. Memory grows by a "
        "model copy, and by "
        "2d for the acceleration and 1d for gossip buffers when R > 1",
    ),
    CostRow(
        "GT-HSGD",
        "b0",
        "2b",
        2,
        False,
        "2",
        False,
        5,
        4,
        "4d: the increment is added before V is overwritten",
    ),
    CostRow("CHOCO-SGD", "b", "b", 1, False, "1 (+ compress)", True, 3, 3),
    CostRow("BEER", "b", "b", 2, False, "2 (+ compress)", True, 7, 7, "b is large here, of order 1/eps^2"),
    CostRow(
        "DoCoM",
        "b0",
        "2b",
        2,
        False,
        "2 (+ compress)",
        True,
        9,
        8,
        "8d: the increment is added before V is overwritten; at beta = 1 one gradient of b samples is enough",
    ),
)


def complexity_table() -> list[CostRow]:
    """Every row of the paper's table of cost per iteration (tab:comp-compl), with our corrections."""
    return list(_COST_ROWS)
