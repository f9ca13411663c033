"""All agents of a run, for who holds only some of them.

What is said of a run is said of all its agents: a mean over them, a sum of their squares, the worst of them. In a run of
several processes each has the rows of its own agents. `Everyone` is what `Diagnostics` needs of the others;
`docom.distribute.all_agents` gives one, `Alone` is that of a process with all agents. Means are summed and rows are passed in
agent order, and single numbers are gathered agent by agent, so that the result does not depend on who holds which agents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Everyone(Protocol):
    """The processes of a run. All of them call every method alike, in the same order."""

    def words(self, text: str) -> list[str]:
        """What every process says, by rank."""

    def mean(self, x: Tensor, n: int) -> Tensor:
        """The average ``[d]`` over all n agents of rows of which ``x`` are the local ones."""

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """The rows of all n agents in agent order, a process's agents and their rows at a time."""


class Alone:
    """All agents are in this process."""

    def words(self, text: str) -> list[str]:
        """See `Everyone.words`."""
        return [text]

    def mean(self, x: Tensor, n: int) -> Tensor:
        """See `Everyone.mean`."""
        total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        for row in x:
            total += row
        return (total / n).to(x)

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """See `Everyone.rows_of_all`."""
        yield range(n), x


def gathered(everyone: Everyone, local: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Numbers of all agents by name, in agent order, from those of the local agents; all names in one message."""
    said = everyone.words(json.dumps({name: numbers.tolist() for name, numbers in local.items()}))
    parts: list[dict[str, list[float]]] = [json.loads(text) for text in said]
    return {name: [number for part in parts for number in part[name]] for name in local}
