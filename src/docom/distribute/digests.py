"""Digests of objects by what they consist of, so that processes can compare what each of them has built.

Tensors and arrays count by their type, shape and bytes, functions by their code and what it refers to, modules and other objects
by their class and the state that ``copy`` would take over. An object whose state cannot be seen is refused: two different ones
would be taken for the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

PLAIN = (str, int, float, complex, bytes, bool, type(None), type(Ellipsis), torch.dtype, torch.device, np.generic)
KNOWN = {"torch", "numpy", "docom", *sys.stdlib_module_names}  # whose code is compared by version, or not at all


def digest(value: Any) -> str:
    """Of an object and all that it holds; equal in all processes that have built it alike.

    Raises:
        ValueError: something in it has a state that cannot be seen; the error says where it is.
    """
    walk = _Walk()
    walk.add(value, "")
    return walk.total.hexdigest()[:16]


class _Walk:
    """One way through an object. Every value is announced by its kind and size, so that no two read alike."""

    def __init__(self) -> None:
        self.total = sha256()
        self.open: dict[int, Any] = {}  # what is being looked into: an object may hold itself
        self.code: dict[int, Any] = {}  # functions and classes seen

    def add(self, value: Any, where: str) -> None:
        if isinstance(value, PLAIN):
            self.say(f"{type(value).__name__} {value!r}")
        elif isinstance(value, torch.Tensor | np.ndarray):
            self.numbers(value, where)
        elif isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type | CodeType):
            self.program(value, where)
        elif isinstance(value, ModuleType):
            self.say(f"import {value.__name__}")
        elif id(value) in self.open:
            self.say(f"again {list(self.open).index(id(value))}")
        else:
            self.open[id(value)] = value
            self.parts(value, where)
            del self.open[id(value)]

    def say(self, text: str) -> None:
        data = text.encode()
        self.total.update(f"{len(data)}:".encode() + data)

    def numbers(self, value: torch.Tensor | np.ndarray, where: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type == "meta":
                raise _unseen(value, where)
            self.say(f"tensor {value.dtype} {list(value.shape)}")
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        elif value.dtype.hasobject:
            return self.add(value.tolist(), where)
        else:
            self.say(f"array {value.dtype} {list(value.shape)}")
        self.total.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return None

    def parts(self, value: Any, where: str) -> None:
        if isinstance(value, dict) and type(value) is dict:
            self.say(f"dict {len(value)}")
            for key in sorted(value) if all(isinstance(key, str) for key in value) else value:
                self.add(key, where)
                self.add(value[key], f"{where}[{key!r}]" if where else str(key))
        elif type(value) in (list, tuple):
            self.say(f"{type(value).__name__} {len(value)}")
            for number, part in enumerate(value):
                self.add(part, f"{where}[{number}]")
        elif isinstance(value, set | frozenset):
            self.say(f"set {sorted(digest(part) for part in value)}")
        elif isinstance(value, partial):
            self.together("partial", [value.func, value.args, value.keywords], where)
        else:
            self.object(value, where)

    def object(self, value: Any, where: str) -> None:
        """By its class and what a copy of it would be made from."""
        try:
            made = value.__reduce_ex__(4)
        except Exception as error:
            raise _unseen(value, where) from error
        self.say("object")
        self.add(type(value), where)
        if isinstance(made, str):  # a name in its module
            return self.say(made)
        _, arguments, *rest = made
        self.add(list(arguments), where)
        for number, part in enumerate(rest[:3]):
            if number > 0 and part is not None:  # items of a list or a dictionary that the object is
                part = list(part)
            if isinstance(part, dict):
                self.fields(part, where)
            else:
                self.add(part, where)
        return None

    def fields(self, state: dict[str, Any], where: str) -> None:
        self.say(f"fields {len(state)}")
        for name in sorted(state, key=str):
            self.say(str(name))
            self.add(state[name], f"{where}.{name}" if where else str(name))

    def program(self, value: Any, where: str) -> None:
        """A function or a class by its name, and by its code unless it belongs to a known library."""
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(type(value)))}"
        if isinstance(value, CodeType):
            return self.together("code", [value.co_code, list(value.co_consts), list(value.co_names)], where)
        self.say(f"{type(value).__name__} {name}")
        if id(value) in self.code:
            return None
        self.code[id(value)] = value
        if isinstance(value, MethodType):
            self.together("method", [value.__func__, value.__self__], where)
        elif isinstance(value, type):
            for base in value.__mro__[:-1]:
                if not _is_known(base):
                    self.together("class", [*_members(base)], where)
        elif isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            self.together("function", [value.__defaults__, value.__kwdefaults__, cells], where)
            if not _is_known(value):
                self.together("code", [value.__code__, *_used_globals(value)], where)
        elif not isinstance(value.__self__, ModuleType):
            self.add(value.__self__, where)
        return None

    def together(self, kind: str, parts: list[Any], where: str) -> None:
        self.say(f"{kind} {len(parts)}")
        for part in parts:
            self.add(part, where)


def _is_known(value: FunctionType | type) -> bool:
    return str(value.__module__ or "builtins").partition(".")[0] in KNOWN


def _members(kind: type) -> Iterable[Any]:
    """The functions and plain values written in a class, in the order of their names."""
    for name, member in sorted(vars(kind).items(), key=lambda item: item[0]):
        if isinstance(member, staticmethod | classmethod):
            yield member.__func__
        elif isinstance(member, property):
            yield member.fget
        elif isinstance(member, FunctionType) or (isinstance(member, PLAIN) and not _is_special(name)):
            yield member


def _used_globals(function: FunctionType) -> Iterable[Any]:
    """The functions and numbers of its module that a function refers to."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (*PLAIN, FunctionType, torch.Tensor, np.ndarray)) and not _is_special(name):
            yield value


def _is_special(name: str) -> bool:
    """``__module__``, ``__file__`` and their like, which say where code lies."""
    return name.startswith("__") and name.endswith("__")


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that is bound later
        return False
    return True


def _unseen(value: Any, where: str) -> ValueError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return ValueError(
        f"{where or 'an object'} is a {kind}, whose content cannot be compared between processes; the problem of a run with "
        "several processes holds tensors, arrays, modules, functions and plain values. Make what else it needs when it is used"
    )
