"""Short names with arguments, as users type them: ``"topk:0.05"``, ``"erdos-renyi:0.3"``, ``"edge-lowrank:1,rounds=3"``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MEANT = {"gpu": "cuda", "nvidia": "cuda"}  # names used elsewhere; these are meant, not the most similar spelling
MOST_LISTED = 15  # names in a message that offers one already


def nearest(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = list(known)
    meant = MEANT.get(name.lower().partition(":")[0])
    close = [meant] if meant in names else get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    if close and len(names) > MOST_LISTED:
        return ValueError(f"unknown {kind} {name!r}{hint} There are {len(names)}; `docom list` names them")
    return ValueError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


def check_name(kind: type[Any], known: type | None) -> None:
    """Refuse to register a class that has no name, or one that another class has; a class may be registered again."""
    name = getattr(kind, "name", None)
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", name)):
        raise ValueError(
            f'{kind.__name__} needs a name of letters, digits and dashes to be called by, such as name = "my-own", '
            f"got {name!r}"
        )
    if known is not None and known.__qualname__ != kind.__qualname__:
        raise ValueError(f"the name {name!r} is taken by {known.__name__}; choose another")


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
