"""One door for what users add: `register` files it where docom's own things of that kind are."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isabstract, isclass, isfunction
from typing import Any, TypeVar

from docom import algorithms, channels, compressors, plugins
from docom.algorithms import ALGORITHMS, ASYNCHRONOUS, Algorithm
from docom.channels import GOSSIPS, Gossip
from docom.compressors import COMPRESSORS, Compressor
from docom.config import from_dict
from docom.names import check_name
from docom.presets import PRESETS, Preset
from docom.problems import PROBLEMS, Problem

Thing = TypeVar("Thing")

ORIGIN: dict[tuple[str, str], str] = {}  # kind and name -> the plugin that registered it, "" for code without one


def register(thing: Thing) -> Thing:
    """Make a method, a compressor, a problem or a preset of your own known by its name; works as a decorator.

    =====================================  =========================================================================
    a subclass of `docom.Algorithm`        a method; ``name`` is its name
    a subclass of `docom.Compressor`       a compressor; ``name`` is its name, ``example`` a spelling such as ``"mine:0.1"``
    a subclass of `docom.channels.Gossip`  another way to exchange a variable, named like a compressor
    a subclass of `docom.problems.Problem` a problem; ``name`` is its name, its arguments are the options
    a function                             a problem; its name, with dashes, and its arguments are the options
    a `docom.Preset`                       a preset
    =====================================  =========================================================================

    Returns:
        The thing itself.

    Raises:
        TypeError, ValueError: it is none of these, has no usable name, or the name is taken.

    >>> @register
    ... def ones(agents: int = 4, features: int = 3):
    ...     "Least squares where every number is 1."
    ...     import torch, docom
    ...     return docom.problems.LeastSquares(torch.ones(agents, 2, features), torch.ones(agents, 2))
    >>> from docom.config import from_dict
    >>> config = from_dict({"algorithm": "dsgd", "hyper": {"lr": 0.1}, "problem": {"name": "ones", "features": 7}})
    >>> config.build_problem("data").dimension
    7
    """
    for kind, fits, enter in KINDS:
        if fits(thing):
            enter(kind, thing)
            return thing
    raise TypeError(
        "register takes a subclass of Algorithm, Compressor or Problem, a function that makes a problem, or a Preset; "
        f"got {thing!r}"
    )


def origin(kind: str, name: str) -> str | None:
    """Which plugin has registered it; "" where it was not a plugin, None for docom's own."""
    return ORIGIN.get((kind, name))


def _algorithm(kind: str, method: type[Algorithm]) -> None:
    name = _name(method)
    for needed in ("channels", "facts"):
        if not hasattr(method, needed):
            raise ValueError(f"{method.__name__} needs {needed}, see docs/tutorials/add-a-method.md")
    if isabstract(method):
        missing = ", ".join(sorted(method.__abstractmethods__))
        raise ValueError(f"{method.__name__} lacks {missing}; a method has init, advance and absorb")
    _claim(kind, name, ALGORITHMS.get(name) or ASYNCHRONOUS.get(name), method)
    algorithms.register(method)


def _compressor(kind: str, compressor: type[Compressor]) -> None:
    name = _name(compressor)
    known = COMPRESSORS.get(name)
    _claim(kind, name, None if known is None else known[0], compressor)
    compressors.register(compressor)


def _gossip(kind: str, gossip: type[Gossip]) -> None:
    name = _name(gossip)
    _claim(kind, name, GOSSIPS.get(name), gossip)
    channels.named.register(gossip)


def _problem(kind: str, builder: Callable[..., Problem]) -> None:
    name = _name(builder) if isclass(builder) else builder.__name__.strip("_").replace("_", "-")
    known = PROBLEMS.get(name)
    _claim(kind, name, None if known is None else known[0], builder)
    PROBLEMS[name] = (builder, _about(builder))


def _preset(kind: str, preset: Preset) -> None:
    for setting in preset.settings:
        try:
            from_dict(preset.values(setting))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the preset {preset.name}, {setting.label}: {error}") from None
    _claim(kind, preset.name, PRESETS.get(preset.name), preset)
    PRESETS[preset.name] = preset


def _claim(kind: str, name: str, known: Any, thing: Any) -> None:
    """Refuse a name that is taken; the same thing, defined again as in a notebook, takes the place of the one before."""
    before, now = origin(kind, name), plugins.current() or ""
    again = before == now and getattr(known, "__qualname__", "") == getattr(thing, "__qualname__", "")
    if known is not None and not again:
        by = f" of {before}" if before else ""
        raise ValueError(f"the name {name!r} is taken by {getattr(known, '__name__', 'a preset')}{by}; choose another")
    ORIGIN[kind, name] = now


def _name(kind: type) -> str:
    check_name(kind, None)
    return str(kind.name)  # type: ignore[attr-defined]


def _about(thing: Any) -> str:
    lines = (thing.__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else "no description"


def _is(base: type) -> Callable[[Any], bool]:
    return lambda thing: isclass(thing) and issubclass(thing, base)


KINDS: tuple[tuple[str, Callable[[Any], bool], Callable[[str, Any], None]], ...] = (
    ("algorithms", _is(Algorithm), _algorithm),
    ("compressors", _is(Compressor), _compressor),
    ("compressors", _is(Gossip), _gossip),
    ("problems", _is(Problem), _problem),
    ("problems", isfunction, _problem),
    ("presets", lambda thing: isinstance(thing, Preset), _preset),
)
