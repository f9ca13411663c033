"""What a change of members does to the rows of a method.

A method says three things of itself: ``conserved`` (by default ``tracked``), the rows whose sum over members must be that of
others, or zero; ``sponsored``, the rows that are the same at all agents, so that a joiner takes them from its sponsor; and
``renewed``, the rows that begin again at all members. All other rows of a joiner begin as the method begins, at the sponsor's
model.

An agent that leaves hands over what its row has more than it should have to a neighbour, which adds it to its own. After a crash
nobody knows what that was, and all members start again: their rows are set to what they should sum to.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from docom.algorithms.base import Algorithm, State
from docom.channels.passage import Passage


def continued(
    algorithm: Algorithm, before: State, passage: Passage, begun: State | None, again: Callable[[Tensor], State]
) -> State:
    """The state of the present members.

    begun: that of the joiners, as the method begins. again: that of all members, as it begins at these models.
    """
    rows = {name: passage.spread(row) for name, row in before.rows().items()}
    if begun is not None:
        joiners = [joiner for joiner, _ in passage.joined]
        for name, row in begun.rows().items():
            if name not in algorithm.sponsored:
                rows[name][joiners] = row
    if (sums := algorithm.sums_kept()) is not None:
        name, like = sums
        if passage.restarts:
            rows[name].copy_(rows[like]) if like is not None else rows[name].zero_()
        for old, heir in () if passage.restarts else passage.heirs:
            left = before.rows()[name][old]
            rows[name][heir] += left if like is None else left - before.rows()[like][old]
    if algorithm.renewed:
        fresh = again(rows["x"]).rows()
        rows |= {name: fresh[name] for name in algorithm.renewed}
    return State(**rows)
