"""Whether a method, an inner optimizer, local steps and an overlap go together; the errors name what does."""

from __future__ import annotations

import warnings

from docom.algorithms import ALGORITHMS, Algorithm
from docom.inner import Inner
from docom.local_steps import check_steps

OUTER = 1.0  # the outer step size of the plain method, for those whose learning rate has no value of its own


def check_local_steps(
    algorithm: Algorithm, inner: Inner | None, steps: object, overlap: object, agents: int | None
) -> list[int]:
    """The local steps of every agent, empty without an inner optimizer; raises for what does not go together.

    agents: how many there are; None where it is not known yet, and one number then stands for all.
    """
    if type(overlap) is not int or overlap < 0:
        raise ValueError(f"overlap is a number of inner steps >= 0, got {overlap!r}")
    if algorithm.asynchronous and overlap:
        raise ValueError(f"{algorithm.name} is asynchronous, so that nothing waits for a message; leave out overlap")
    if inner is None and algorithm.asynchronous:
        return check_steps(1 if steps is None else steps, agents)
    if inner is None:
        if steps is not None or overlap:
            raise ValueError(
                "local steps need an inner optimizer: give inner, such as docom.inner.AdamW(lr=1e-3) or --inner adamw:lr=1e-3"
            )
        return []
    counts = check_steps(1 if steps is None else steps, agents)
    if overlap >= max(2, min(counts)):
        raise ValueError(f"overlap={overlap} must be less than the local steps of every agent ({min(counts)} at least)")
    name = algorithm.name
    if algorithm.points_per_step > 1:
        raise ValueError(two_gradients(name))
    if algorithm.b0 is not None:
        raise ValueError(f"{name}: b0 is the size of the first gradient's batch; with local steps leave it out")
    if algorithm.plain_inner and not inner.is_plain:
        raise ValueError(
            f"{name} divides by the inner step size, and so needs plain SGD inside: docom.inner.SGD(lr=...); {any_inner()}"
        )
    if (algorithm.plain_inner or algorithm.random_phases) and len(set(counts)) > 1:
        raise ValueError(
            f"{name} needs the same number of local steps at all agents, got {counts}; "
            f"{_listed('corrects', but='plain_inner')} take unequal ones"
        )
    if algorithm.random_phases and overlap:
        raise ValueError(f"{name} draws the number of local steps, so that overlap must be 0")
    return counts


def any_inner() -> str:
    """Which methods correct local steps of any inner optimizer."""
    return f"{_listed('corrects', but='plain_inner')} take any inner optimizer"


def two_gradients(name: str) -> str:
    """Why a method that compares two gradients has no local steps, and which methods do."""
    return (
        f"{name} compares two gradients on the same batch, and with local steps it would need two walks on the same batches; "
        f"take a method with one gradient per step: {_listed('corrects')} (exact where agents have different data), diloco, "
        "sparseloco, gasloc, noloco, choco-sgd, or docom with beta=1"
    )


def warn_of_drift(algorithm: Algorithm, counts: list[int]) -> None:
    """Warn where a method tracks pseudo-gradients, as if that removed the drift of local steps."""
    if algorithm.tracked is not None and counts and max(counts) > 1:
        warnings.warn(
            f"{algorithm.name} tracks pseudo-gradients, which does not remove the drift of local steps where agents have "
            f"different data; {_listed('corrects')} correct it",
            stacklevel=4,
        )


def _listed(what: str, but: str = "") -> str:
    """The methods that declare one thing and not the other: ``k-gt and led``."""
    found = [n for n, kind in ALGORITHMS.items() if getattr(kind, what) and not (but and getattr(kind, but))]
    return " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))
