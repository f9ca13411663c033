"""Which conditions a method survives: declared by its class, asked for by a run.

A class says so in ``stands``: the condition, and the settings that it needs for that, none for most::

    stands = {CHANGING: {}, LOSSY: {}}
    stands = {CHANGING: {"mixing": "lazy"}}

A run under a condition that its method does not survive is refused, with the methods that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from docom.names import nearest

if TYPE_CHECKING:
    from docom.algorithms.base import Algorithm

Stands = Mapping[str, Mapping[str, Any]]

CHANGING, LOSSY, MEMBERS, DIRECTED, AWAY = "changing", "lossy", "members", "directed", "away"
CONDITIONS = {
    CHANGING: "networks that change from round to round",
    LOSSY: "messages that are lost or late",
    MEMBERS: "agents that leave and join",
    DIRECTED: "directed networks",
    AWAY: "sites that skip those that are away",
}


def survives(algorithm: Algorithm, condition: str) -> bool:
    """Whether a method with its present settings survives a condition."""
    if condition not in CONDITIONS:
        raise nearest("condition", condition, CONDITIONS)
    needed = algorithm.stands.get(condition)
    return needed is not None and all(getattr(algorithm, name) == value for name, value in needed.items())


def check_stands(method: type[Algorithm]) -> None:
    """Refuse a declaration with an unknown condition, or with a setting that the method does not have."""
    known = {f.name for f in fields(method)}
    for condition, needed in method.stands.items():
        if condition not in CONDITIONS:
            raise TypeError(f"{method.__name__}.stands: {nearest('condition', condition, CONDITIONS)}")
        for name in needed:
            if name not in known:
                raise TypeError(f"{method.__name__}.stands: {nearest('setting', name, known)}")


def refusal(algorithm: Algorithm, condition: str, methods: Iterable[type[Algorithm]]) -> ValueError:
    """The error for a method that does not survive a condition: the setting with which it does, and the methods that do."""
    needed = algorithm.stands.get(condition)
    wanted = "" if needed is None else f"use {algorithm.name} with {_settings(needed)}, or "
    able = [f"{kind.name}{_with(kind.stands[condition])}" for kind in methods if condition in kind.stands]
    others = [name for name in able if name.partition(" ")[0] != algorithm.name]
    return ValueError(
        f"{algorithm.name} does not say that it works with {CONDITIONS[condition]}; {wanted}take one of "
        f"{', '.join(others) or 'no other method'} (a method declares it in stands)"
    )


def _settings(needed: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in needed.items())


def _with(needed: Mapping[str, Any]) -> str:
    return f" ({_settings(needed)})" if needed else ""
