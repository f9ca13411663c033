"""The ranks of one agent: the processes among which the user's own DDP or FSDP2 has divided its model.

A rank keeps the rows of its own shard, and talks to the rank in the same position of the neighbouring agents. Of a parameter
that all ranks hold whole it keeps a share of the first side, as long as FSDP2's shard of it would be: so every number has
one rank that exchanges it, and after a step the ranks give each other their shares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from docom.team import Team, join

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AGENTS = "agents"
EXAMPLE = 'init_device_mesh("cuda", (4, 8), mesh_dim_names=("agents", "ranks"))'
SEEDS = 2**63
TOGETHER = 2**25  # numbers of tensors that are made whole in one operation, which needs memory for twice as many


class Ranks:
    """The ranks of an agent from the view of one of them; without a mesh the only one.

    position, count: the number of this rank, and how many there are. team: their conversations.
    mesh: their mesh, of one dimension.
    """

    def __init__(self, mesh: DeviceMesh | None = None, peer_timeout: float = 300.0) -> None:
        self.mesh = mesh
        self.position, self.count = 0, 1
        self.team = Team()
        self._last: tuple[Tensor, Tensor] | None = None  # gloo's thread lets go of them after the gathering is complete
        if mesh is not None and mesh.size() > 1:
            self.position, self.count = mesh.get_local_rank(), mesh.size()
            self.team = join({}, None, peer_timeout, mesh.device_type, mesh.get_group())

    def piece(self, tensor: Tensor) -> Tensor:
        """What this rank keeps rows of, as a view: its shard, or its share of a tensor that all ranks hold."""
        here = local(tensor)
        if self.count == 1 or sharded_side(tensor) is not None:
            return here
        return share(here, self.position, self.count)

    def complete(self, tensors: Iterable[Tensor]) -> None:
        """Make tensors that all ranks hold whole again, after each rank has written its pieces; all ranks call this."""
        if self.count == 1:
            return
        whole = [local(t) for t in tensors if sharded_side(t) is None]
        for dtype in sorted({t.dtype for t in whole}, key=str):
            for some in buckets([t for t in whole if t.dtype == dtype]):
                self._complete(some)

    def _complete(self, tensors: Sequence[Tensor]) -> None:
        pieces = [[share(t, position, self.count) for t in tensors] for position in range(self.count)]
        lengths = [[piece.numel() for piece in some] for some in pieces]
        room = max(map(sum, lengths))
        own = tensors[0].new_zeros(room)
        torch.cat([piece.reshape(-1) for piece in pieces[self.position]], out=own[: sum(lengths[self.position])])
        everyone = own.new_empty(self.count * room)
        assert self.mesh is not None
        parts = list(everyone.view(torch.uint8).split(own.nbytes))
        dist.all_gather(parts, own.view(torch.uint8), group=self.mesh.get_group())
        self._last = (everyone, own) if own.device.type == "cpu" else None
        for position, came in enumerate(everyone.split(room)):
            if position != self.position:
                news = came[: sum(lengths[position])].split(lengths[position])
                pairs = zip(news, pieces[position], strict=True)
                torch._foreach_copy_(pieces[position], [new.view(piece.shape) for new, piece in pairs])

    def placed(self, piece: Tensor, shape: Sequence[int], side: int) -> Tensor:
        """The pieces of all ranks as one tensor of this shape, divided along a side: what DCP saves and reads."""
        if self.count == 1:
            return piece
        from torch.distributed.tensor import DTensor, Shard

        assert self.mesh is not None
        stride = torch.empty(tuple(shape), device="meta").stride()
        return DTensor.from_local(
            piece, self.mesh, [Shard(side)], run_check=False, shape=torch.Size(shape), stride=stride
        )

    def first_s(self, flag: bool) -> bool:
        """What the first rank says, where the ranks might decide differently."""
        if self.count == 1:
            return flag
        said = torch.tensor([flag], dtype=torch.uint8)
        self.team.start_from_first(said)
        return bool(said)

    def together(self, norm: Tensor) -> Tensor:
        """The length of the agent's whole row, from that of this rank's part."""
        if self.count == 1:
            return norm
        squares = norm**2
        self.team.add_up(squares)
        return squares.sqrt()

    def seed(self, seed: int) -> int:
        """The seed of this rank's compression noise: the agents' own at the first rank, another one at every other."""
        return (seed + (self.position << 32)) % SEEDS

    def check(self, described: Iterable[tuple[str, Tensor]]) -> None:
        """Refuse parameters that are divided over other processes than these ranks."""
        for name, tensor in described:
            if not is_dtensor(tensor):
                continue
            if self.mesh is None:
                raise ValueError(
                    f"{name} is a DTensor, so that an agent is several processes: give mesh=, as in {EXAMPLE}"
                )
            mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
            if mesh.mesh.flatten().tolist() != self.mesh.mesh.flatten().tolist():
                raise ValueError(
                    f"{name} is divided over {mesh.size()} processes, and an agent of mesh= has {self.count} ranks: "
                    f"fully_shard(module, mesh=mesh[{_name(self.mesh)!r}])"
                )
            plain = len(placements) == 1 and (placements[0].is_replicate() or type(placements[0]).__name__ == "Shard")
            if not plain:
                raise ValueError(
                    f"{name} is placed as {placements}; parameters here are sharded along one side, or whole"
                )

    def each(self, number: int) -> list[int]:
        """The number that every rank gives."""
        return [int(text) for text in self.team.words(str(number))]

    def of_each(self, numbers: int | list[int]) -> int:
        """This rank's part of what `each` returned: its own, or all at the first rank where there were more or fewer."""
        if isinstance(numbers, int):  # of an agent without a mesh
            return numbers
        if len(numbers) == self.count:
            return numbers[self.position]
        return 0 if self.position else sum(numbers)

    def smallest(self, numbers: list[float]) -> list[float]:
        """The smallest of all ranks, number by number."""
        return [min(some) for some in zip(*map(json.loads, self.team.words(json.dumps(numbers))), strict=True)]

    def agree(self, facts: dict[str, str]) -> None:
        """Raise, in all ranks, if they differ in these facts."""
        self.team.agree(facts)

    def all_keep(self, numbers: int) -> None:
        """Raise, in all ranks, if one of them keeps no numbers."""
        kept = self.each(numbers)
        if 0 in kept:
            raise ValueError(
                f"rank {kept.index(0)} of {self.count} would keep no number of the model, whose tensors have fewer rows than "
                "an agent has ranks; take fewer ranks"
            )


def agents_and_ranks(mesh: object, peer_timeout: float) -> tuple[Any, Ranks]:
    """The dimension of a mesh that has the agents, and the ranks of this one."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh is a torch.distributed DeviceMesh, as of {EXAMPLE}; got {mesh!r}")
    names = list(mesh.mesh_dim_names or ())
    if AGENTS not in names or len(names) > 2:
        shown = f"the dimensions {', '.join(map(repr, names))}" if names else "dimensions without names"
        raise ValueError(f"mesh has {shown}; it needs {AGENTS!r} and at most one more, as in {EXAMPLE}")
    if mesh.get_coordinate() is None:
        raise ValueError("this process is not in the mesh; only its processes can be ranks of agents")
    inside = next((name for name in names if name != AGENTS), None)
    return mesh[AGENTS], Ranks() if inside is None else Ranks(mesh[inside], peer_timeout)


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is divided over processes; told without an import that takes a while."""
    return hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """The tensor that this process holds of it."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # type: ignore[attr-defined, no-any-return]


def sharded_side(tensor: Tensor) -> int | None:
    """The side along which ranks have divided a tensor; None where each holds it whole."""
    if not is_dtensor(tensor) or tensor.placements[0].is_replicate():  # type: ignore[attr-defined]
        return None
    side = int(tensor.placements[0].dim)  # type: ignore[attr-defined]
    return side % tensor.dim()


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in their order, some at a time, with `TOGETHER` numbers at most or one tensor."""
    some: list[Tensor] = []
    numbers = 0
    for tensor in tensors:
        if some and numbers + tensor.numel() > TOGETHER:
            yield some
            some, numbers = [], 0
        some.append(tensor)
        numbers += tensor.numel()
    if some:
        yield some


def span(side: int, position: int, count: int) -> tuple[int, int]:
    """Where the part of a rank begins and ends in a side of so many numbers: as torch's ``Shard`` divides it.

    >>> [span(5, position, 4) for position in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    length = -(-side // count)
    return min(side, position * length), min(side, (position + 1) * length)


def share(tensor: Tensor, position: int, count: int) -> Tensor:
    """The part of a rank in a tensor that all ranks hold, as a view: whole rows, as many as FSDP2 would give it."""
    rows = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    begin, end = span(len(rows), position, count)
    return rows[begin:end]


def _name(mesh: DeviceMesh) -> str:
    return (mesh.mesh_dim_names or ("ranks",))[0]
