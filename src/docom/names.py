"""Short names with arguments, as users type them: ``"topk:0.05"``, ``"erdos-renyi:0.3"``, ``"edge-lowrank:1,rounds=3"``."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


def split_spec(spec: str) -> tuple[str, list[str], dict[str, str]]:
    """``"name:a,b,key=c"`` as name, positional and named arguments.

    >>> split_spec("edge-lowrank:1,rounds=3")
    ('edge-lowrank', ['1'], {'rounds': '3'})
    """
    name, _, rest = spec.strip().partition(":")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = argument.partition("=")
        if equals:
            named[key.strip()] = value.strip()
        else:
            positional.append(argument)
    return name, positional, named
