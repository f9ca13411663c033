"""What every channel has in common."""

from __future__ import annotations

from torch import Tensor

from docom.numerics import Difference
from docom.transports import Transport

Gap = Difference | Tensor


class NonFiniteVariable(FloatingPointError):
    """A variable of some agents holds a NaN or an infinity, seen before it was sent."""

    def __init__(self, variable: str, agents: list[int]) -> None:
        super().__init__(f"NaN or infinity in the {variable} of agent {', '.join(map(str, agents))}")
        self.variable, self.agents = variable, agents


class Channel:
    """What every channel has: its name, its counters, and the rows it keeps from step to step.

    bits_per_round: what one agent sends a round by the paper's formula, a broadcast counted once.
    bytes_per_round: what all agents put on all links a round, as encoded.
    exchanges: messages a round that must wait for one another.
    """

    bits_per_round: float
    bytes_per_round: int
    exchanges: int = 1

    def __init__(self, variable: str, transport: Transport) -> None:
        self.variable, self.transport = variable, transport
        self.rounds = 0

    def start(self, hat: Tensor) -> None:
        """Begin with public copies ``hat``, the same row for all agents and known to all, so that none is sent."""

    def push(self, x: Tensor, damping: float = 1.0) -> Gap:
        """Make ``x`` public as far as one message allows; return ``sum_j W_ij (hat_j - hat_i)`` thereafter.

        damping: the copies move by this share of the message only; the gap returned is that of the full one.
        """
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not push")

    @property
    def gap(self) -> Gap:
        """``sum_j W_ij (hat_j - hat_i)`` as of the last push."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which has no gap")

    def mix(self, x: Tensor) -> Tensor:
        """``sum_j W_ij x_j``, in a buffer that lasts until the next call."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not mix")

    def mean(self, x: Tensor) -> Tensor:
        """The average of all agents' rows, one copy a local agent."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not average")

    def rows(self) -> dict[str, Tensor]:
        """All that must be saved: tensors whose first dimension is the local agents."""
        return {}

    def load(self, rows: dict[str, Tensor]) -> None:
        """Take back what `rows` gave."""
        for name, row in self.rows().items():
            row.copy_(rows[name])

    def refuse(self, nonfinite: Tensor) -> None:
        """Raise an error that names the agents whose rows are not finite."""
        if bool(nonfinite.any()):
            raise NonFiniteVariable(self.variable, self.transport.agents[nonfinite].tolist())
