"""The trainable parameters of a model as one row of numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from docom.algorithms import Algorithm
from docom.layout import Layout
from docom.names import nearest
from docom.optim.ranks import Ranks, local, sharded_side

Group = dict[str, Any]
KEYS = ("params", "lr", "weight_decay")
TORCHS_OWN = ("param_names", "initial_lr")


def trainable(group: Group) -> list[Tensor]:
    """The trained parameters of a group: frozen and empty tensors are not part of the row, nor of any message."""
    return [p for p in group["params"] if p.requires_grad and p.numel() > 0]


def describe(groups: Sequence[Group]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter with its name for errors: its own if the user passed ``named_parameters()``."""
    for number, group in enumerate(groups):
        names = group.get("param_names") or [f"parameter {i} of group {number}" for i in range(len(group["params"]))]
        yield from zip(names, group["params"], strict=True)


class Flat:
    """The parameters of all groups, one after the other in a row ``[1, d]`` of ``dtype``.

    The row may be more precise than the parameters: a bf16 model then holds the rounded row. Where an agent has several
    ranks, it has this one's pieces of the parameters; ``layout`` and ``shares`` are of these, ``whole`` of the model.
    """

    def __init__(self, groups: Sequence[Group], dtype: torch.dtype, ranks: Ranks | None = None) -> None:
        self.dtype, self.ranks = dtype, ranks or Ranks()
        self.parameters = [p for group in groups for p in trainable(group)]
        if not self.parameters:
            raise ValueError("no parameter requires a gradient: there is nothing to train")
        self.whole = Layout(tuple(tuple(p.shape) or (1,) for p in self.parameters))
        self.whole_shares = [sum(p.numel() for p in trainable(group)) for group in groups]
        named = [(name, p) for name, p in describe(groups) if p.requires_grad and p.numel() > 0]
        pieces = [self.ranks.piece(p) for _, p in named]
        self.ranks.agree({"parameters": ", ".join(map(str, self.whole.shapes))})
        if self.ranks.count > 1:
            self.ranks.all_keep(sum(piece.numel() for piece in pieces))
        # Those of which this rank keeps nothing are not in its row; their gradients are still its agent's.
        self.kept = [p for (_, p), piece in zip(named, pieces, strict=True) if piece.numel()]
        self.names = [name for (name, _), piece in zip(named, pieces, strict=True) if piece.numel()]
        self._shapes = [piece.shape for piece in pieces if piece.numel()]
        self.layout = Layout(tuple(tuple(shape) or (1,) for shape in self._shapes))
        self.shares = [sum(self.ranks.piece(p).numel() for p in trainable(group)) for group in groups]
        self.frozen = [(name, p) for name, p in describe(groups) if not p.requires_grad]
        self.device = self.parameters[0].device
        self._written: list[int] = []
        self._gradients: list[Tensor] = []
        self._spread: dict[str, tuple[tuple[float, ...], Tensor]] = {}

    def row(self) -> Tensor:
        """The parameters as a new row."""
        return self._filled(self._empty(), self._pieces(self.kept))

    def write(self, row: Tensor) -> None:
        """Put a row into the parameters; all ranks of an agent call this."""
        torch._foreach_copy_(self._pieces(self.kept), self._views(row))
        self.ranks.complete(self.parameters)

    def publish(self, row: Tensor) -> None:
        """Put a row into the parameters, and remember which row is there."""
        self.write(row)
        self._written = self._versions()

    def changed(self, row: Tensor) -> str | None:
        """The first parameter that no longer holds its part of the published row.

        Numbers are compared only for tensors that were written to since, so that the usual answer costs nothing.
        """
        if self._versions() == self._written:
            return None
        for name, piece, part in zip(self.names, self._pieces(self.kept), self._views(row), strict=True):
            if not torch.equal(piece, part.to(piece.dtype)):
                return name
        self._written = self._versions()
        return None

    def _versions(self) -> list[int]:
        return [local(p)._version for p in self.kept]

    def gradients(self, number: int, scale: Tensor | None = None) -> Tensor:
        """The gradients as row ``number`` of those of a step; zero where a parameter took no part in the loss.

        scale: what the loss was multiplied with.
        """
        while len(self._gradients) <= number:
            self._gradients.append(self._empty())
        row = self._gradients[number]
        found = [p.grad for p in self.kept]
        if any(g is None for g in found):
            row.zero_()
        dense = [None if g is None else g.to_dense() if g.is_sparse else g for g in found]
        self._filled(row, [None if g is None else self.ranks.piece(g) for g in dense])
        return row if scale is None else row.div_(scale.to(row.device, row.dtype))

    def write_gradients(self, row: Tensor) -> None:
        """Put a row into the parameters' gradients; those that took no part in the loss get one too."""
        for parameter in self.parameters:
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_copy_(self._held(), self._views(row))
        self._complete_gradients()

    @property
    def writable_gradients(self) -> bool:
        """Whether all parameters have gradients of the row's type, which may then be changed where they are."""
        grads = [p.grad for p in self.parameters]
        return all(g is not None and not g.is_sparse and g.dtype == self.dtype for g in grads)

    def add_to_gradients(self, row: Tensor) -> None:
        """Add a row to the parameters' gradients, which are `writable_gradients`; all ranks of an agent call this."""
        torch._foreach_add_(self._held(), self._views(row))
        self._complete_gradients()

    def add_gradients_to(self, row: Tensor) -> None:
        """Add the parameters' gradients, which are `writable_gradients`, to a row."""
        torch._foreach_add_(self._views(row), self._held())

    def _held(self) -> list[Tensor]:
        return self._pieces([p.grad for p in self.kept if p.grad is not None])

    def _complete_gradients(self) -> None:
        self.ranks.complete([p.grad for p in self.parameters if p.grad is not None])

    def _pieces(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """What this rank keeps of each."""
        return [self.ranks.piece(t) for t in tensors]

    def replicated(self) -> str:
        """A key of what all ranks of an agent must hold alike: the bits of the parameters that are not sharded."""
        whole = [local(p) for p in self.parameters if sharded_side(p) is None]
        return " ".join(map(digest, whole)) if self.ranks.count > 1 else ""

    def per_group(self, what: str, values: Sequence[float]) -> float | Tensor:
        """One value per group as a number where all groups have the same, else as one value per coordinate, ``[1, d]``.

        what: the name under which such a row is kept until its values change.
        """
        used = {value for value, share in zip(values, self.whole_shares, strict=True) if share}  # alike at all ranks
        return used.pop() if len(used) == 1 else self.spread(values, what)

    def spread(self, values: Sequence[float], what: str = "") -> Tensor:
        """One value per group as one value per coordinate, ``[1, d]``.

        In float64, so that what a method computes with it is rounded once, as it is with a plain number.
        """
        wanted = tuple(values)
        kept = self._spread.get(what)
        if kept is None or kept[0] != wanted:
            parts = [torch.full((share,), v, dtype=torch.float64) for v, share in zip(wanted, self.shares, strict=True)]
            kept = self._spread[what] = wanted, torch.cat(parts).unsqueeze(0).to(self.device)
        return kept[1]

    def thawed(self) -> str | None:
        """The first parameter that was frozen at the start and is not any more."""
        return next((name for name, p in self.frozen if p.requires_grad), None)

    def _empty(self) -> Tensor:
        return torch.empty(1, self.layout.dimension, dtype=self.dtype, device=self.device)

    def _views(self, row: Tensor) -> list[Tensor]:
        return [part.view(shape) for shape, part in zip(self._shapes, row[0].split(self.layout.sizes), strict=True)]

    def _filled(self, row: Tensor, tensors: Iterable[Tensor | None]) -> Tensor:
        pairs = [(view, t) for view, t in zip(self._views(row), tensors, strict=True) if t is not None]
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [t.detach() for _, t in pairs])
        return row


def digest(row: Tensor) -> str:
    """A key that changes with the bits of a tensor."""
    return sha256(row.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def check_keys(number: int, group: Group, algorithm: Algorithm) -> None:
    """Raise for a group with keys that would be ignored."""
    for key in group.keys() - {*KEYS, *TORCHS_OWN}:
        if key in {field.name for field in fields(algorithm)}:
            raise ValueError(
                f"group {number}: {key} is a setting of the method, the same for all groups: "
                f"docom.{type(algorithm).__name__}({key}={group[key]!r})"
            )
        raise nearest(f"key of parameter group {number}", key, KEYS)
    decay = group.get("weight_decay", 0.0)
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < float("inf"):
        raise ValueError(f"group {number}: weight_decay is a number >= 0, got {decay!r}")


def check(groups: Sequence[Group]) -> torch.device:
    """Refuse parameters that cannot be one row; return where they are."""
    found = [(name, p) for name, p in describe(groups) if p.requires_grad]
    for name, parameter in found:
        if not parameter.is_floating_point():
            raise TypeError(f"{name} is {parameter.dtype}; only real floating point parameters can be trained here")
    devices = {p.device for _, p in found}
    if len(devices) > 1:
        raise ValueError(f"all parameters must be on one device, got {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device("cpu")
