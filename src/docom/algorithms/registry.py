"""The methods by name. Those of the library and those of a user come in by the same door: `register`."""

from __future__ import annotations

from typing import TypeVar

from docom.algorithms import standing
from docom.algorithms.base import Algorithm
from docom.names import check_name, nearest

ALGORITHMS: dict[str, type[Algorithm]] = {}
ASYNCHRONOUS: dict[str, type[Algorithm]] = {}  # run event by event in the simulator, and nowhere else

Method = TypeVar("Method", bound=type[Algorithm])


def register(method: Method) -> Method:
    """Make a method known by its name; what it declares is checked. Users' things of every kind go through `docom.register`."""
    name = getattr(method, "name", "")
    check_name(method, ALGORITHMS.get(name) or ASYNCHRONOUS.get(name))
    method.step_sizes()
    standing.check_stands(method)
    (ASYNCHRONOUS if method.asynchronous else ALGORITHMS)[method.name] = method
    return method


def find(name: str) -> type[Algorithm]:
    """The method of that name."""
    known = ALGORITHMS | ASYNCHRONOUS
    if name not in known:
        raise nearest("algorithm", name, known)
    return known[name]


def title(name: str) -> str:
    """What people call the method of that name."""
    method = ALGORITHMS.get(name) or ASYNCHRONOUS.get(name)
    return (method.facts.title if method is not None else "") or name


def require(algorithm: Algorithm, condition: str) -> None:
    """Refuse a method that does not survive a condition (see `docom.algorithms.standing`), naming those that do."""
    if not standing.survives(algorithm, condition):
        raise standing.refusal(algorithm, condition, (ALGORITHMS | ASYNCHRONOUS).values())
