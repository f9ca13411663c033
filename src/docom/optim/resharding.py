"""The state of one rank as tensors that can be divided among another number of ranks.

An agent's rows have one number per parameter, so they are divided as the parameters are: each row becomes one tensor for each
parameter, a DTensor over the ranks of the agent, which ``torch.distributed.checkpoint`` saves and divides again as it does
with a model. What is not a tensor becomes text, kept as bytes: the state is tensors only.

What belongs to a rank's own shard as a whole (bases of low-rank messages, what a message of a fragment did not send) is kept
for a run with as many ranks; with another number it starts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from docom.optim.parameters import Flat, Group
from docom.optim.ranks import Ranks, is_dtensor, local, sharded_side

ABOUT = "docom.about"
FORMAT = 1
STATES = "docom.walk.optimizer.state"  # of the inner optimizer, by the number of the parameter
Sizes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Division:
    """How the parameters, and what has one number for each of theirs, are divided among the ranks of an agent."""

    def __init__(self, groups: Sequence[Group], flat: Flat, ranks: Ranks) -> None:
        self.flat, self.ranks = flat, ranks
        self.everything: list[Tensor] = [p for group in groups for p in group["params"]]

    def to_tensors(self, state: dict[str, Any]) -> dict[str, Tensor]:
        """The state as tensors by name; all ranks call this, and have the same text."""
        tensors: dict[str, Tensor] = {}
        about = {"format": FORMAT, "ranks": self.ranks.count, "state": self._take_apart(state, "", tensors)}
        text = self.ranks.team.words(json.dumps(about))[0].encode()
        # Filled up, so that DCP can read it over that of another moment, whose counters have other lengths.
        padded = bytearray(text.ljust(1 << len(text).bit_length()))
        return {ABOUT: torch.frombuffer(padded, dtype=torch.uint8)} | tensors

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The inverse, without what starts again."""
        about = parsed(tensors[ABOUT])
        found: dict[str, Any] = self._put_together(about["state"], tensors, int(about["ranks"]))
        return found

    def expected(self, about: Mapping[str, Any], sizes: Sizes) -> dict[str, Tensor]:
        """Tensors to read a saved state into, given what it says of itself and the shapes that are in the files."""
        wanted: dict[str, Tensor] = {}
        self._expect(about["state"], sizes, int(about["ranks"]), wanted)
        return wanted

    # Rows of this rank, and tensors divided over all ranks

    def _side(self, parameter: Tensor) -> int:
        return sharded_side(parameter) or 0

    def _pieces(self, row: Tensor) -> list[Tensor]:
        """A row, or several, parameter by parameter, those of which this rank keeps nothing included."""
        lead = row.shape[1:-1]
        parts = iter(row[0].split(self.flat.layout.sizes, dim=-1))
        shapes = [self._piece_shape(p) for p in self.flat.parameters]
        return [next(parts).reshape(*lead, *shape) if prod(shape) else row.new_empty(*lead, *shape) for shape in shapes]

    def _piece_shape(self, parameter: Tensor) -> tuple[int, ...]:
        return tuple(self.ranks.piece(parameter).shape) or (1,)

    def _divided(self, pieces: Sequence[Tensor], lead: int) -> list[Tensor]:
        found = []
        for parameter, piece in zip(self.flat.parameters, pieces, strict=True):
            shape = (*piece.shape[:lead], *(tuple(parameter.shape) or (1,)))
            found.append(self.ranks.placed(piece, shape, lead + self._side(parameter)))
        return found

    # Nested containers as text

    def _take_apart(self, value: Any, path: str, tensors: dict[str, Tensor], owner: int | None = None) -> Any:
        if isinstance(value, Tensor):
            return self._name(value, path, tensors, owner)
        if isinstance(value, dict):
            owners = {key: int(key) if path == STATES else owner for key in value}
            inside = [
                [key, self._take_apart(part, f"{path}.{key}".lstrip("."), tensors, owners[key])]
                for key, part in value.items()
            ]
            return {"dict": inside}
        if isinstance(value, list | tuple):
            inside = [self._take_apart(part, f"{path}.{at}", tensors, owner) for at, part in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": inside}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"{path} of the state is a {type(value).__name__}, which is neither tensor, number nor text")

    def _name(self, value: Tensor, path: str, tensors: dict[str, Tensor], owner: int | None) -> dict[str, Any]:
        if value.dim() > 1 and len(value) == 1 and value.shape[-1] == self.flat.layout.dimension and owner is None:
            lead = list(value.shape[1:-1])
            divided = self._divided(self._pieces(value), len(lead))
            tensors |= {f"{path}.{number}": tensor for number, tensor in enumerate(divided)}
            return {"row": path, "lead": lead}
        if value.numel() == 1 or (owner is not None and (is_dtensor(value) or self._replicated(owner))):
            tensors[path] = value if value.dim() else value.reshape(1)
            return {"tensor": path, "scalar": value.dim() == 0, "owner": owner}
        tensors[_own(path, self.ranks.position, self.ranks.count)] = value if value.dim() else value.reshape(1)
        return {"own": path, "scalar": value.dim() == 0}

    def _replicated(self, owner: int) -> bool:
        return self.ranks.count == 1 or sharded_side(self.everything[owner]) is None

    # And back

    def _put_together(self, said: Any, tensors: Mapping[str, Tensor], ranks: int) -> Any:
        if not isinstance(said, dict):
            return said
        if "dict" in said:
            return {
                key: self._put_together(part, tensors, ranks)
                for key, part in said["dict"]
                if not self._starts_again(part, ranks)
            }
        if "list" in said or "tuple" in said:
            kind, inside = next(iter(said.items()))
            found = [self._put_together(part, tensors, ranks) for part in inside]
            return tuple(found) if kind == "tuple" else found
        if "row" in said:
            pieces = [local(tensors[name]) for name in self._names(said["row"])]
            lead = len(said["lead"])
            return torch.cat([piece.flatten(lead) for piece in pieces if piece.numel()], dim=-1).unsqueeze(0)
        name = said["tensor"] if "tensor" in said else _own(said["own"], self.ranks.position, self.ranks.count)
        return tensors[name].reshape(()) if said["scalar"] else tensors[name]

    def _starts_again(self, said: Any, ranks: int) -> bool:
        return isinstance(said, dict) and "own" in said and ranks != self.ranks.count

    def _names(self, path: str) -> list[str]:
        return [f"{path}.{number}" for number in range(len(self.flat.parameters))]

    def _expect(self, said: Any, sizes: Sizes, ranks: int, wanted: dict[str, Tensor]) -> None:
        if not isinstance(said, dict):
            return
        for part in said.get("list", said.get("tuple", [part for _, part in said.get("dict", ())])):
            self._expect(part, sizes, ranks, wanted)
        if "row" in said:
            wanted |= self._expected_row(said["row"], [int(side) for side in said["lead"]], sizes)
        elif "tensor" in said:
            wanted[said["tensor"]] = self._expected_state(said["tensor"], said["owner"], sizes)
        elif "own" in said and ranks == self.ranks.count:
            name = _own(said["own"], self.ranks.position, ranks)
            wanted[name] = torch.zeros(sizes[name][0], dtype=sizes[name][1])
        elif "own" in said and said["own"].startswith(STATES):
            raise ValueError(
                f"the inner optimizer keeps {said['own'].removeprefix(STATES)} of a rank's shard as a whole, so that its state "
                f"continues with {ranks} ranks only, not with {self.ranks.count}"
            )

    def _expected_row(self, path: str, lead: Sequence[int], sizes: Sizes) -> dict[str, Tensor]:
        pieces = []
        for name, parameter in zip(self._names(path), self.flat.parameters, strict=True):
            (found, dtype), shape = sizes[name], (*lead, *(tuple(parameter.shape) or (1,)))
            if found != shape:
                raise ValueError(f"{name} has the shape {found} there, and {shape} here")
            pieces.append(torch.zeros(*lead, *self._piece_shape(parameter), dtype=dtype, device=parameter.device))
        return dict(zip(self._names(path), self._divided(pieces, len(lead)), strict=True))

    def _expected_state(self, name: str, owner: int | None, sizes: Sizes) -> Tensor:
        """A tensor of the inner optimizer's state, which is divided as its parameter is if it has that shape."""
        shape, dtype = sizes[name]
        if owner is not None:
            parameter = self.everything[owner]
            if is_dtensor(parameter) and shape == tuple(parameter.shape):
                return torch.zeros_like(parameter, dtype=dtype)
        return torch.zeros(shape, dtype=dtype)


def parsed(about: Tensor) -> dict[str, Any]:
    """What a state says of itself."""
    found = json.loads(about.cpu().numpy().tobytes())
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError("the state has another format")
    return found


def _own(path: str, position: int, count: int) -> str:
    return f"{path} of rank {position} of {count}"
