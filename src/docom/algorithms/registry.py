"""The methods by name. Those of the library and those of a user come in by the same door: `register`."""

from __future__ import annotations

from typing import TypeVar

from docom import compressors
from docom.algorithms.base import Algorithm
from docom.channels import Gossip, named
from docom.compressors import Compressor
from docom.names import check_name, nearest

ALGORITHMS: dict[str, type[Algorithm]] = {}

Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Make a method, or a compressor, known by its name; use as a decorator.

    From then on the name works everywhere: in `docom run`, in YAML files, in ``compressor=``. What a method declares is checked.
    """
    if isinstance(kind, type) and issubclass(kind, Algorithm):
        check_name(kind, ALGORITHMS.get(getattr(kind, "name", "")))
        kind.step_sizes()
        ALGORITHMS[kind.name] = kind
    elif isinstance(kind, type) and issubclass(kind, Compressor):
        compressors.register(kind)
    elif isinstance(kind, type) and issubclass(kind, Gossip):
        named.register(kind)
    else:
        raise TypeError(
            "register takes a method (a class that extends docom.Algorithm), a compressor (docom.Compressor) or another way to "
            f"exchange a variable (docom.channels.Gossip), got {kind!r}"
        )
    return kind


def find(name: str) -> type[Algorithm]:
    """The method of that name."""
    if name not in ALGORITHMS:
        raise nearest("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def title(name: str) -> str:
    """What people call the method of that name."""
    method = ALGORITHMS.get(name)
    return (method.facts.title if method is not None else "") or name
