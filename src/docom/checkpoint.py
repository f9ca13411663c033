"""Checkpoints: the whole state of a run by agent id, so that any executor can go on with what another one saved.

A checkpoint is a folder ``step-N``: one safetensors file a block of agents, and last a manifest with sizes and checksums,
its own among them.
It is written under a temporary name and renamed when complete, so a cut at any byte leaves the one before it in use.
Randomness has no state here, and no other state exists: a resumed run is the run that was not interrupted, bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docom.loop import Training

FORMAT = 1
KEEP = 2
NAME = re.compile(r"^step-(\d+)$")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


def rows_of(training: Training) -> dict[str, Tensor]:
    """Everything that must be saved, one row a local agent."""
    rows = {f"state.{name}": row for name, row in training.state.rows().items()}
    rows |= {f"links.{name}": row for name, row in training.links.rows().items()}
    if training.drawn is not None:
        rows["drawn"] = training.drawn
    return rows


def save(training: Training, folder: Path, description: dict[str, Any]) -> Path:
    """Write ``folder/step-N``; keep it and the one before. ``description`` must match for a run to go on from it."""
    from safetensors.torch import save as to_bytes

    final = folder / f"step-{training.step}"
    for cut_short in folder.glob("step-*.tmp"):
        shutil.rmtree(cut_short, ignore_errors=True)
    temporary = folder / f"step-{training.step}.tmp"
    temporary.mkdir(parents=True)
    agents = training.oracle.agents.tolist()
    name = f"agents-{agents[0]:05d}-{agents[-1]:05d}.safetensors"
    tensors = {key: row.detach().cpu().contiguous() for key, row in rows_of(training).items()}
    data = to_bytes(tensors)
    _write(temporary / name, data)
    manifest = {
        "format": FORMAT,
        "step": training.step,
        "seconds": training.seconds,
        "samples": training.oracle.samples,
        "rounds": training.links.rounds(),
        "description": description,
        "shards": [{"file": name, "agents": agents, "bytes": len(data), "sha256": sha256(data).hexdigest()}],
    }
    sealed = manifest | {"sha256": _seal(manifest)}
    _write(temporary / "manifest.json", json.dumps(sealed, indent=1).encode())
    if final.exists():  # a damaged one, or the run would have gone on from it
        shutil.rmtree(final)
    os.replace(temporary, final)
    for old in _found(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def restore(training: Training, folder: Path, description: dict[str, Any]) -> int | None:
    """Bring a freshly begun training to the newest usable checkpoint; return its step, or None where there is none.

    Raises:
        CheckpointError: checkpoints exist, but of another run or none of them is whole.
    """
    from safetensors import SafetensorError

    reasons = []
    for candidate in reversed(_found(folder)):
        try:
            manifest, rows = _read(candidate)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            reasons.append(f"{candidate.name}: {error}")
            continue
        _compare(manifest["description"], description)
        _fill(training, manifest, rows)
        return training.step
    if reasons:
        raise CheckpointError(f"no checkpoint is whole ({'; '.join(reasons)}); remove {folder} to start from step 0")
    return None


def _found(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.match(path.name))]
    return [path for _, path in sorted(numbered)]


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and the rows of all agents, every size and checksum compared before use."""
    from safetensors.torch import load as from_bytes

    manifest = json.loads((folder / "manifest.json").read_text())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError("the manifest is of another format")
    if manifest.pop("sha256", None) != _seal(manifest) or folder.name != f"step-{manifest['step']}":
        raise CheckpointError("the manifest is damaged (checksum)")
    agents: list[int] = []
    parts: list[dict[str, Tensor]] = []
    for shard in manifest["shards"]:
        if Path(shard["file"]).name != shard["file"]:
            raise CheckpointError(f"{shard['file']!r} is no file of the checkpoint's own folder")
        path = folder / shard["file"]
        if path.stat().st_size != shard["bytes"]:
            raise CheckpointError(f"{path.name} has {path.stat().st_size} bytes instead of {shard['bytes']}")
        data = path.read_bytes()
        if sha256(data).hexdigest() != shard["sha256"]:
            raise CheckpointError(f"{path.name} is damaged (checksum)")
        parts.append(from_bytes(data))
        agents += shard["agents"]
    if agents != list(range(len(agents))):
        raise CheckpointError("the shards do not hold every agent once, in order")
    rows = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    if any(len(row) != len(agents) for row in rows.values()):
        raise CheckpointError(f"not every variable has a row for each of the {len(agents)} agents")
    return manifest, rows


def _seal(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest's values, however they are laid out in the file."""
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _compare(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))  # tuples come back as lists
    different = [key for key in sorted(saved.keys() | wanted.keys()) if saved.get(key) != wanted.get(key)]
    if different:
        details = "; ".join(f"{key}: {saved.get(key)!r} there, {wanted.get(key)!r} here" for key in different)
        raise CheckpointError(f"the checkpoint is of another run ({details}); use another folder, or the same settings")


def _fill(training: Training, manifest: dict[str, Any], rows: dict[str, Tensor]) -> None:
    agents, n = training.oracle.agents, training.links.network.n
    if any(len(row) != n for row in rows.values()):
        raise CheckpointError(f"the checkpoint does not hold {n} agents")
    mine = {key: row[agents.cpu()] for key, row in rows.items()}
    if "drawn" in mine:
        training.drawn = mine.pop("drawn").to(training.state.x)
    expected = rows_of(training)
    expected.pop("drawn", None)
    if mine.keys() != expected.keys() or any(mine[key].shape != row.shape for key, row in expected.items()):
        raise CheckpointError("the checkpoint holds other variables than this algorithm has")
    for name, row in training.state.rows().items():
        row.copy_(mine[f"state.{name}"])
    prefix = "links."
    training.links.load(
        {key[len(prefix) :]: row for key, row in mine.items() if key.startswith(prefix)}, manifest["rounds"]
    )
    training.step, training.seconds = int(manifest["step"]), float(manifest["seconds"])
    training.oracle.samples = int(manifest["samples"])


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
