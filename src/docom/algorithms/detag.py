"""DeTAG: gradient tracking with accelerated gossip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from torch import Tensor

from docom.algorithms.base import Algorithm, Channels, Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands
from docom.channels import Channel
from docom.numerics import combine


@register
@dataclass(frozen=True)
class DeTAG(Algorithm):
    """R rounds of accelerated gossip of the model and of the tracker per step.

    Lu and De Sa, "Optimal complexity in decentralized training", ICML 2021::

        AG(z):  z_{-1} = z_0 = z,  z_{r+1} = (1 + c) W z_r - c z_{r-1},  r = 0 .. R-1
        m = AG(y);  theta_new = AG(theta) - eta m;  y <- m + grad(theta) - grad_old

    lr: eta. rounds: R. acceleration: c, or "auto" for ``(1 - sqrt(1 - lambda^2)) / (1 + sqrt(1 - lambda^2))`` with
    ``lambda = 1 - rho`` (0 where R = 1: one round cannot accelerate).
    tracker_in_step: the tracker the model follows: "mixed" (the paper: m, one phase behind), "updated" (the new y; with
    R = 1, c = 0 that is GNSD), or "old" (y).
    Memory 4 d (and up to 2 d for R > 1), 2 R uncompressed messages and one batch per step.

    Differs from the paper: the R small batches drawn during the gossip are one batch of the run's size.

    >>> DeTAG(lr=0.005, rounds=2).tracker_in_step
    'mixed'
    """

    lr: Scheduled = learning_rate()
    rounds: int = 1
    acceleration: float | str = "auto"
    tracker_in_step: str = "mixed"

    name: ClassVar[str] = "detag"
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed", "tracker": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {"rounds": 1}, MEMBERS: {}}
    tracked: ClassVar[tuple[str, str] | None] = ("y", "g_old")
    facts: ClassVar[Facts] = Facts(
        paper="Lu and De Sa 2021",
        messages="2R",
        gradients="b",
        memory=4,
        reaches_optimum=True,
        title="DeTAG",
        colour="#9c6b43",
        when="Graphs that mix slowly, where several rounds of gossip per step cost little beside the gradient.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"detag: rounds must be >= 1, got {self.rounds}")
        if self.acceleration != "auto" and not (
            isinstance(self.acceleration, int | float) and 0 <= self.acceleration < 1
        ):
            raise ValueError(f'detag: acceleration is "auto" or a number in [0, 1), got {self.acceleration!r}')
        if self.tracker_in_step not in ("mixed", "updated", "old"):
            raise ValueError(f'detag: tracker_in_step is "mixed", "updated" or "old", got {self.tracker_in_step!r}')

    def init(self, x0: Tensor, grad0: Tensor, channels: Channels, hyper: Hyper) -> State:
        """The tracker and the previous gradient start at zero together: mean(y) = mean(grad_old) always."""
        return State(x=x0.clone(), y=0 * x0, g=grad0.clone(), g_old=0 * x0)

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        """One phase."""
        x, y, g, g_old = state.x, state.y, state.g, state.g_old
        if self.tracker_in_step == "old":
            combine(x, (1, self._gossip(x, channels["model"], channels)), (-hyper.lr, y))
            combine(y, (1, self._gossip(y, channels["tracker"], channels)), (1, g), (-1, g_old))
        else:
            y.copy_(self._gossip(y, channels["tracker"], channels))
            x.copy_(self._gossip(x, channels["model"], channels))
            if self.tracker_in_step == "mixed":
                combine(x, (1, x), (-hyper.lr, y))
            combine(y, (1, y), (1, g), (-1, g_old))
            if self.tracker_in_step == "updated":
                combine(x, (1, x), (-hyper.lr, y))
        g_old.copy_(g)
        state.points = (x,)

    def absorb(self, state: State, grads: Sequence[Tensor], channels: Channels, hyper: Hyper) -> None:
        """The gradient of the next phase."""
        state.g.copy_(grads[0])

    def _gossip(self, z: Tensor, channel: Channel, channels: Channels) -> Tensor:
        c = self._factor(channels.network.rho)
        if c == 0:
            for _ in range(self.rounds - 1):
                z = channel.mix(z).clone()
            return channel.mix(z)
        before, now = z, z
        for _ in range(self.rounds):
            mixed = channel.mix(now)
            before, now = now, combine(mixed.clone(), (1 + c, mixed), (-c, before))
        return now

    def _factor(self, rho: float) -> float:
        if self.acceleration != "auto":
            return float(self.acceleration)
        root = sqrt(max(0.0, 1 - (1 - rho) ** 2))
        return 0.0 if self.rounds == 1 else (1 - root) / (1 + root)
