"""Compressors Q: what they keep, their contraction, and the bytes of their messages.

>>> parse("topk:0.05")
TopK(fraction=0.05, k=None, values='full', scope='global', whole=0)
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from docom.compressors.base import Bound, Compressor, NonFinite, Sparse, Stamp
from docom.compressors.bins import Bins
from docom.compressors.chunks import ChunkTopK
from docom.compressors.identity import Identity
from docom.compressors.lowrank import LowRank
from docom.compressors.quantizer import Quantizer, Sign
from docom.compressors.sparsifiers import RandK, TopK
from docom.names import check_name, nearest, split_spec

__all__ = [
    "COMPRESSORS",
    "Bins",
    "Bound",
    "ChunkTopK",
    "Compressor",
    "Identity",
    "LowRank",
    "NonFinite",
    "Quantizer",
    "RandK",
    "Sign",
    "Sparse",
    "Stamp",
    "TopK",
    "built",
    "parse",
    "register",
]

# Name -> class and an example of its arguments. A new compressor is one line here, or a user's call of `register`.
COMPRESSORS: dict[str, tuple[type[Compressor], str]] = {
    "none": (Identity, "none"),
    "topk": (TopK, "topk:0.05"),
    "chunk-topk": (ChunkTopK, "chunk-topk:64"),
    "randk": (RandK, "randk:0.05"),
    "bins": (Bins, "bins:2"),
    "quantize": (Quantizer, "quantize:4"),
    "sign": (Sign, "sign"),
    "lowrank": (LowRank, "lowrank:2"),
}


Kind = TypeVar("Kind")


def register(kind: type[Compressor]) -> None:
    """Make a user's compressor known by its name; its ``example``, if any, shows how to write it."""
    check_name(kind, COMPRESSORS.get(getattr(kind, "name", ""), (None, ""))[0])
    COMPRESSORS[kind.name] = (kind, getattr(kind, "example", kind.name))


def parse(spec: str | Compressor | None) -> Compressor:
    """A compressor from its short name: ``name:argument,key=value``; None means no compression."""
    if isinstance(spec, Compressor):
        return spec
    if spec is None:
        return Identity()
    if not isinstance(spec, str):
        raise TypeError(f'a compressor is a name such as "topk:0.05" or an object such as TopK(...), got {spec!r}')
    name, _, _ = split_spec(spec)
    if name not in COMPRESSORS:
        raise nearest("compressor", name, COMPRESSORS)
    kind, example = COMPRESSORS[name]
    return built(kind, spec, example)


def built(kind: type[Kind], spec: str, example: str) -> Kind:
    """An object of a class from its spelling, ``name:argument,key=value``, the arguments being the class's fields in order."""
    name, positional, named = split_spec(spec)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    arguments = dict(zip(known, positional, strict=False)) | named
    if len(positional) > len(known) or not set(arguments) <= set(known):
        raise ValueError(f"{spec!r}: {name} takes {', '.join(known) or 'no arguments'}, as in {example!r}")
    try:
        return kind(**{key: _number(value) for key, value in arguments.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{spec!r}: {error} (an example is {example!r})") from None


def _number(text: str) -> str | int | float | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
