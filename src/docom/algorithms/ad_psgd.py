"""AD-PSGD: asynchronous gossip of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from docom.algorithms.asynchronous import AsynchronousMethod
from docom.algorithms.base import Facts, Hyper, Scheduled, State
from docom.algorithms.declarations import learning_rate
from docom.algorithms.registry import register
from docom.algorithms.standing import CHANGING, LOSSY, MEMBERS, Stands


@register
@dataclass(frozen=True)
class ADPSGD(AsynchronousMethod):
    """Average with one random neighbour whenever a gradient is done; nobody waits for a slow agent.

    Lian, Zhang, Zhang and Liu, ICML 2018. Whenever agent i has a gradient g of the model that it read when it began::

        x_i = x_j = (x_i + x_j) / 2      with a neighbour j drawn evenly, both at the same time
        x_i <- x_i - eta g

    lr: eta. rates: "as-they-are": every gradient counts the same, so that an agent counts by how often it works; "even": an
    agent's gradients are divided by its rate (its works so far over the mean of all agents), so that all agents' data count
    the same.
    With an inner optimizer and local steps an agent's work is a walk of K_i inner steps, lr the outer step size.
    Memory 3 d, one uncompressed exchange of a pair and b gradients per work. With heterogeneous data and a constant step it
    stops in a neighbourhood of the optimum. The averaging keeps the mean of all models. An exchange of which a message is lost
    has not happened, at neither end.

    Differs from the paper: an exchange begins when the gradient is done, not during it; the two agents of an exchange are
    held until it is over, and exchanges are ordered by the time at which they are asked for, so that none waits in a circle.

    >>> ADPSGD(lr=0.1).rates
    'as-they-are'
    """

    lr: Scheduled = learning_rate()
    rates: str = "as-they-are"

    name: ClassVar[str] = "ad-psgd"
    pairwise: ClassVar[bool] = True
    channels: ClassVar[dict[str, str]] = {"model": "uncompressed"}
    stands: ClassVar[Stands] = {CHANGING: {}, LOSSY: {}, MEMBERS: {}}
    facts: ClassVar[Facts] = Facts(
        paper="Lian et al. 2018",
        messages="1, with one neighbour",
        gradients="b",
        memory=3,
        reaches_optimum=False,
        title="AD-PSGD",
        colour="#5b8c5a",
        when="Agents of different speed whose data are alike: nobody waits for the slow ones.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rates not in ("as-they-are", "even"):
            raise ValueError(f'ad-psgd: rates is "as-they-are" or "even", got {self.rates!r}')

    def rows(self, x0: Tensor, slots: int, hyper: Hyper) -> State:
        """See `AsynchronousMethod.rows`."""
        return State(x=x0.clone(), start=x0.clone(), end=x0.clone())

    def meet(self, x: Any, i: int, j: int) -> None:
        """Average the models of a pair, rows of an array."""
        x[i] = x[j] = (x[i] + x[j]) * 0.5
