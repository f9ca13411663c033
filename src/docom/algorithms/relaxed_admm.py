"""Relaxed ADMM with gradient steps: messages may be lost, late or partial, and nobody waits."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from torch import Tensor

from docom.algorithms.asynchronous import AsynchronousMethod
from docom.algorithms.base import Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands


@register
@dataclass(frozen=True)
class RelaxedADMM(AsynchronousMethod):
    """Every agent pulls towards what its neighbours last sent; lost and late messages change nothing in the end.

    Relaxed ADMM over edges (Bastianello et al. 2021) with gradient steps instead of exact minimisations. Agent i keeps its
    model and one z_ij for every neighbour j. Whenever it works::

        K_i times:         x_i <- x_i - eta (grad f_i(x_i) + pen deg_i x_i - sum_j z_ij)
        sends every j:     m_ij = 2 pen x_i - z_ij            (all of it, or a random part of its coordinates)
        when m_ji arrives: z_ij <- (1 - r) z_ij + r m_ji      on the coordinates that arrived

    Where it rests, neighbours agree and the gradients of all agents add up to zero, also where messages were lost, delayed or
    reordered, and for any numbers K_i of local steps. No sum must be kept, so there are no acknowledgements and no copies.

    lr: eta; ``0.5 / (L + pen deg)`` where the agents' smoothness L is known. With an inner optimizer, which then takes these
    steps, lr is the outer step size. penalty: pen, about L / 5. relaxation: r, 0.5 to 0.9. keep: the share of its
    coordinates that a message holds, drawn for every work (the receiver draws the same). A late message that holds all
    coordinates is dropped if a newer one has been applied.
    Memory ``deg + 5`` d, one message to every neighbour and K_i b gradients per work.

    Differs from the literature: gradient steps, partial messages; their numbers are our own measurements.

    >>> RelaxedADMM(lr=0.05, penalty=1.0).relaxation
    0.9
    """

    lr: Scheduled = learning_rate()
    penalty: float = 1.0
    relaxation: float = 0.9
    keep: float = 1.0

    name: ClassVar[str] = "relaxed-admm"
    pairwise: ClassVar[bool] = False
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Bastianello et al. 2021, ours",
        messages="1",
        gradients="K b",
        memory=7,
        reaches_optimum=True,
        title="Relaxed ADMM",
        colour="#b5651d",
        when="Agents of different speed and links that lose or delay messages, also where the agents' data differ.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in (("penalty", float("inf")), ("relaxation", 1.0), ("keep", 1.0)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not isfinite(value) or not 0 < value <= most:
                bound = "" if most == float("inf") else f" and <= {most:g}"
                raise ValueError(f"relaxed-admm: {name} is a number > 0{bound}, got {value!r}")

    def rows(self, x0: Tensor, slots: int, hyper: Hyper) -> State:
        """See `AsynchronousMethod.rows`."""
        z = (self.penalty * x0).unsqueeze(1).expand(-1, slots, -1).clone()
        return State(x=x0.clone(), start=x0.clone(), end=x0.clone(), z=z, pull=0 * x0)

    def pulled(self, gradient: Any, x: Any, pull: Any, degree: Any) -> Any:
        """The direction of a local step, against which the agent moves; ``pull`` is the sum of its z."""
        return gradient + self.penalty * degree * x - pull

    def letters(self, x: Any, z: Any) -> Any:
        """What agents send, ``[agents, slots, d]``."""
        return 2 * self.penalty * x[:, None] - z

    def relaxed(self, z: Any, came: Any) -> Any:
        """z after a message."""
        return (1 - self.relaxation) * z + self.relaxation * came
