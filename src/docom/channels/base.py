"""What every channel has in common."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from docom.channels.meter import Meter
from docom.channels.passage import Ends, Passage
from docom.compressors import Bound, NonFinite, Stamp
from docom.numerics import NEVER, nonfinite_rows, note_nonfinite
from docom.rng import Tick
from docom.transports import Pending, Place, Transport


class NonFiniteVariable(FloatingPointError):
    """A variable of some agents holds a NaN or an infinity.

    On a CPU this is found before the variable is sent. The host does not wait for a GPU: the GPU stores the agents and the
    round, and they are read at the next evaluation.
    """

    def __init__(self, variable: str, agents: list[int], round: int | None = None) -> None:
        super().__init__(f"NaN or infinity in the {variable} of agent {', '.join(map(str, agents))}")
        self.variable, self.agents, self.round = variable, agents, round


class Watch:
    """What a GPU stores for a channel: the present round, and the first round of each agent with NaN or infinity."""

    def __init__(self, agents: Tensor) -> None:
        self.counter = torch.zeros((), dtype=torch.int64, device=agents.device)
        self.first = torch.full((len(agents),), NEVER, dtype=torch.int64, device=agents.device)

    @property
    def moment(self) -> Tick:
        """The present round, as kernels take it."""
        return Tick(self.counter)

    def note(self, nonfinite: Tensor, rows: Tensor | None = None) -> None:
        """Note agents that are not finite in this round: a mask of all agents, or of those of some rows."""
        now = torch.where(nonfinite, self.counter, NEVER)
        if rows is None:
            torch.minimum(self.first, now, out=self.first)
        else:
            self.first.index_copy_(0, rows, torch.minimum(self.first[rows], now))


class Channel:
    """What every channel has: its name, its counters, and the rows it keeps from step to step.

    bits_per_round: what one agent sends per round by the paper's formula, a broadcast counted once.
    bytes_per_round: what all agents put on all links per round, as encoded.
    exchanges: messages per round that must wait for one another.
    number: of the variable among those of the algorithm, for the frames of its messages.
    repairs: whether it works where messages are lost or late.
    bounds: whether it bounds what agents do to others that send garbage, or too much.
    follows_changes: whether the channel works over a network that `docom.weights.Network.changes` from round to round.
    meter: set to measure how much of the messages compression keeps; costs two rows and their sums per round.
    owners: the agents of the rows, where they are not numbered as in the network, because others are away.
    """

    bits_per_round: float
    bytes_per_round: int
    exchanges: int = 1
    number: int = 0
    follows_changes: bool = False
    meter: Meter | None = None
    owners: Tensor | None = None
    lost: int | None = None  # transmissions that did not arrive, where the network loses some
    repairs: ClassVar[bool] = False
    bounds: ClassVar[bool] = False

    def __init__(self, variable: str, transport: Transport) -> None:
        self.variable, self.transport = variable, transport
        self.rounds = 0
        self.watch = Watch(transport.agents) if transport.agents.device.type == "cuda" else None

    @property
    def capturable(self) -> bool:
        """Whether what the channel does on a GPU is the same sequence of kernels every time, without waiting."""
        return False

    @property
    def bits(self) -> float:
        """Bits one agent has sent so far, by the paper's formula."""
        return self.rounds * self.bits_per_round

    @property
    def wire_bytes(self) -> int:
        """Bytes all agents have put on all links so far."""
        return self.rounds * self.bytes_per_round

    @property
    def place(self) -> Place:
        """The place of the next message."""
        return Place(self.number, self.rounds)

    def start(self, hat: Tensor) -> None:
        """Begin with public copies ``hat``: the same row at all agents, so that nothing needs to be sent."""

    def take_over(self, before: Any, passage: Passage, hat: Tensor, keeps: bool) -> Ends:
        """Continue what the channel ``before`` has done among other members, which had this variable and this compressor.

        What was under way is applied at all ends or dropped at all. hat: the copies of those that have none yet. keeps: whether
        the others keep theirs. Returns the links over which copies were sent whole.
        """
        rows = before.rows()
        for name, row in self.rows().items():
            passage.kept(rows[name], row)
        return ()

    def push(self, x: Tensor, damping: float = 1.0) -> Tensor:
        """Move the public copies towards ``x`` by one message; return ``sum_j W_ij (hat_j - hat_i)`` after it.

        damping: the copies move by this share of the message only; the gap returned is that of the full one.
        """
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not push")

    @property
    def gap(self) -> Tensor:
        """``sum_j W_ij (hat_j - hat_i)`` as of the last push."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which has no gap")

    def mix(self, x: Tensor) -> Tensor:
        """``sum_j W_ij x_j``, in a buffer that lasts until the next call."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not mix")

    def mean(self, x: Tensor) -> Tensor:
        """The average of all agents' rows, one copy per local agent."""
        raise TypeError(f"the {self.variable} channel is {type(self).__name__}, which does not average")

    def begin_push(self, x: Tensor, damping: float = 1.0) -> Pending[Tensor]:
        """Like `push`, but returns before the message has arrived; until it is waited for, ``x`` must not change."""
        return Pending.of(self.push(x, damping))

    def begin_mix(self, x: Tensor, room: Tensor | None = None) -> Pending[Tensor]:
        """Like `mix`; see `begin_push`. room: rows, not those of ``x``, in which the result may be returned."""
        return Pending.of(self.mix(x))

    def begin_mean(self, x: Tensor) -> Pending[Tensor]:
        """Like `mean`; see `begin_push`."""
        return Pending.of(self.mean(x))

    def rows(self) -> dict[str, Tensor]:
        """All that must be saved: tensors whose first dimension is the local agents."""
        return {}

    def scratch(self) -> list[Tensor]:
        """Buffers whose contents nobody reads between two exchanges."""
        return []

    def owed(self) -> Tensor | float:
        """What the gaps of the local agents still have to get, so that all their gaps since the start sum to zero over agents.

        Zero without losses.
        """
        return 0.0

    def expect(self, rows: dict[str, Tensor]) -> None:
        """Make room for the rows of a checkpoint, for channels whose number of rows changes during a run."""

    def load(self, rows: dict[str, Tensor]) -> None:
        """Restore what `rows` returned."""
        for name, row in self.rows().items():
            row.copy_(rows[name])

    def count(self) -> None:
        """One more round is done."""
        self.rounds += 1
        if self.watch is not None:
            self.watch.counter.add_(1)

    def resume(self, rounds: int) -> None:
        """Continue after this many rounds."""
        self.rounds = rounds
        if self.watch is not None:
            self.watch.counter.fill_(rounds)

    def inspect(self, x: Tensor) -> None:
        """Refuse rows that are not finite: now on a CPU, at the next `check` on a GPU."""
        if self.watch is None:
            self.refuse(nonfinite_rows(x))
        else:
            note_nonfinite(x, self.watch.first, self.watch.moment)

    def compressed(
        self,
        bound: Bound,
        x: Tensor,
        hat: Tensor | None,
        stamp: Stamp,
        memory: list[Tensor],
        rows: Tensor | None = None,
    ) -> Any:
        """`Bound.compress`, which refuses what is not finite as `inspect` does. rows: those of the local agents that ``x`` has.

        A message that is sent must be finite; where none is sent, the host does not wait for a GPU.
        """
        if self.watch is not None and not self.transport.needs_messages:
            message, nonfinite = bound.compress_lazily(x, hat, stamp, memory)
            self.watch.note(nonfinite, rows)
            return message
        try:
            return bound.compress(x, hat, stamp, memory)
        except NonFinite as error:
            bad = error.rows
            if rows is not None:
                bad = torch.zeros(len(self.transport.agents), dtype=torch.bool, device=x.device)
                bad[rows] = error.rows
            self.refuse(bad)
            raise

    def check(self) -> None:
        """Raise `NonFiniteVariable` if a GPU has found rows that are not finite."""
        if self.watch is None:
            return
        first = self.watch.first.cpu()
        round = int(first.min()) if len(first) else NEVER
        if round < NEVER:
            agents = self._owners.cpu()[first == round].tolist()
            raise NonFiniteVariable(self.variable, agents, round)

    def refuse(self, nonfinite: Tensor) -> None:
        """Raise an error that names the agents whose rows are not finite."""
        if bool(nonfinite.any()):
            raise NonFiniteVariable(self.variable, self._owners[nonfinite].tolist())

    @property
    def _owners(self) -> Tensor:
        return self.transport.agents if self.owners is None else self.owners
