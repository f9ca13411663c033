"""The state of an agent of several ranks on disk: a safetensors file for each rank, and a manifest.

The files are in the layout of ``torch.distributed.checkpoint``'s HuggingFaceStorageWriter, and its reader divides them among
the ranks that there are now. DCP's own files are not used: their metadata is a pickle, and so is what is not a tensor. Neither
are its collective operations, by which ranks would send each other pickled plans: each rank writes and reads its part alone,
and what they tell each other is JSON.

A state is written under a temporary name and renamed when complete; sizes and checksums are compared before any use.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docom.checkpoint import CheckpointError, in_all, seal, write_file
from docom.optim.ranks import Ranks, local, sharded_side, span
from docom.optim.resharding import ABOUT, Sizes

FORMAT = 1
MANIFEST = "manifest.json"


def write(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write the state of one agent; all of its ranks call this, and must see the same folder.

    Raises:
        OSError: a rank could not write; all say why. What was in the folder before is still there.
    """
    words = ranks.team.words
    room = {"room": f"{folder.name}.{os.urandom(4).hex()}.tmp"}
    with in_all(words, room) as rooms:
        if ranks.position == 0:
            (folder.parent / room["room"]).mkdir(parents=True)
    temporary = folder.parent / rooms[0]["room"]
    shard: dict[str, Any] = {}
    with in_all(words, shard) as shards:
        name, data = f"rank-{ranks.position}-of-{ranks.count}.safetensors", _encoded(tensors, ranks)
        write_file(temporary / name, data)
        shard |= {"file": name, "bytes": len(data), "sha256": sha256(data).hexdigest()}
    with in_all(words):
        if ranks.position == 0:
            manifest = {"format": FORMAT, "files": shards}
            write_file(temporary / MANIFEST, json.dumps(manifest | {"sha256": seal(manifest)}, indent=1).encode())
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(temporary, folder)


def _encoded(tensors: Mapping[str, Tensor], ranks: Ranks) -> bytes:
    """What this rank writes: its part of what is divided, and at the first rank what all ranks have."""
    from safetensors.torch import save

    mine: dict[str, Tensor] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for name, tensor in tensors.items():
        side, piece = sharded_side(tensor), local(tensor).detach()
        own = name.endswith(f" of rank {ranks.position} of {ranks.count}")
        if not piece.numel() or (side is None and not own and ranks.position > 0):
            continue
        begins = [0] * piece.dim()
        if side is not None:
            begins[side] = span(tensor.shape[side], ranks.position, ranks.count)[0]
        mine[name], offsets[name] = piece.cpu().contiguous().clone(), {"saved_offsets": begins}
    return save(mine, {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"})


class AgentFiles:
    """A state on disk, checked; all ranks of the agent open it together.

    sizes: the shape and type of every tensor, put together from its parts.

    Raises:
        CheckpointError: it is not there, or damaged.
    """

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        from safetensors import SafetensorError

        reason = ""
        try:
            _verify(folder, ranks)
            self.sizes = _sizes(folder)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            reason = f"{folder.name}: {error}"
        if told := next(filter(None, ranks.team.words(reason)), None):
            raise CheckpointError(told)
        self.folder = folder

    def about(self) -> Tensor:
        """What the state says of itself."""
        shape, dtype = self.sizes[ABOUT]
        return self.read({ABOUT: torch.zeros(shape, dtype=dtype)})[ABOUT]

    def read(self, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fill these tensors, each divided in any way."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it reads without the other ranks
            load(wanted, storage_reader=HuggingFaceStorageReader(str(self.folder)), no_dist=True)
        return wanted


def _verify(folder: Path, ranks: Ranks) -> None:
    """Compare all sizes, and this rank's share of the checksums."""
    manifest = json.loads((folder / MANIFEST).read_text())
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != FORMAT
        or manifest.pop("sha256", None) != seal(manifest)
    ):
        raise CheckpointError("the manifest is damaged (checksum), or of another format")
    names = [file["file"] for file in manifest["files"]]
    if sorted(path.name for path in folder.glob("*.safetensors")) != sorted(names):
        raise CheckpointError("the folder does not hold the files that its manifest names")
    for number, file in enumerate(manifest["files"]):
        path = folder / file["file"]
        if path.stat().st_size != file["bytes"]:
            raise CheckpointError(f"{path.name} has {path.stat().st_size} bytes instead of {file['bytes']}")
        if number % ranks.count == ranks.position and _checksum(path) != file["sha256"]:
            raise CheckpointError(f"{path.name} is damaged (checksum)")


def _checksum(path: Path) -> str:
    found = sha256()
    with path.open("rb") as file:
        while data := file.read(2**24):
            found.update(data)
    return found.hexdigest()


def _sizes(folder: Path) -> Sizes:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    tensors: dict[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        if sum(prod(part.sizes) for part in tensor.chunks) != prod(tensor.size):
            raise CheckpointError(f"{name} is not complete in the files")
        found[name] = tuple(tensor.size), tensor.properties.dtype
    return found
