"""Checkpoints: the whole state of a run by agent id, so that any executor can continue what another one saved.

A checkpoint is a folder ``step-N``: one safetensors file per block of agents, and a manifest with sizes and checksums,
including its own, written last. If several processes run the agents, each writes and reads the block that it holds, and
the process of agent 0 the manifest. A checkpoint is written under a temporary name and renamed when complete, so a crash
at any byte leaves the previous one in use.
Randomness has no state here, and no other state exists: a resumed run equals the run that was not interrupted, bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docom.loop import Training

FORMAT = 1
KEEP = 2
EXTRA = "messages.safetensors"
NAME = re.compile(r"^step-(\d+)$")
# Sends a text to all processes of the run and returns the texts that they send at this point, by rank.
Words = Callable[[str], list[str]]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


def rows_of(training: Training) -> dict[str, Tensor]:
    """Everything that must be saved, one row per local agent that takes part."""
    rows = {f"state.{name}": row for name, row in training.state.rows().items()}
    rows |= {f"links.{name}": row for name, row in training.channels.rows().items()}
    rows |= {f"oracle.{name}": row for name, row in training.oracle.rows().items()}
    if training.drawn is not None:
        rows["drawn"] = training.drawn
    return rows


def alone(text: str) -> list[str]:
    """The conversation of a single process."""
    return [text]


@dataclass(frozen=True)
class Restored:
    """The state to which a training was restored. counts: the counts of all processes together at that time.

    extra: what was saved with it besides.
    """

    step: int
    counts: dict[str, int]
    extra: bytes = b""


def save(
    training: Training,
    folder: Path,
    description: dict[str, Any],
    words: Words = alone,
    counts: dict[str, int] | None = None,
    own: bool = False,
    extra: bytes = b"",
) -> Path:
    """Write ``folder/step-N``; keep it and the previous one. A run can continue from it only if its ``description`` is the same.

    counts: of this process; a run that continues adds to them.
    own: the folder is this process's own, and holds its agents only.
    extra: kept with the checkpoint of such a process.

    Raises:
        OSError: a process could not write; all processes say which and why. The previous checkpoint is still there.
    """
    final = folder / f"step-{training.step}"
    agents = training.holds
    leads = own or agents[0] == 0
    # A unique name: a process of an earlier run that still writes must not write into this one.
    room = {"room": f"{final.name}.{os.urandom(4).hex()}.tmp"}
    with in_all(words, room) as rooms:
        if leads:
            _make_room(folder, folder / room["room"])
    temporary = folder / rooms[0]["room"]
    shard: dict[str, Any] = {}
    with in_all(words, shard) as shards:
        shard |= _write_shard(training, temporary, agents) | {"counts": counts or {}}
        if extra:
            write_file(temporary / EXTRA, extra)
            shard |= {"extra": {"bytes": len(extra), "sha256": sha256(extra).hexdigest()}}
    with in_all(words):
        if leads:
            _seal_off(training, temporary, final, description, shards)
    return final


@contextmanager
def in_all(words: Words, result: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
    """Do something in all processes; if it fails in one it fails in all. Yields a list that will hold the results of all."""
    everybody: list[dict[str, Any]] = []
    said: dict[str, Any] = {}
    try:
        yield everybody
    except OSError as error:
        said = {"error": f"the checkpoint could not be written ({error}); the previous one is kept"}
    everybody += [json.loads(text) for text in words(json.dumps(said or result or {}))]
    for answer in everybody:
        if "error" in answer:
            raise OSError(answer["error"])


def _make_room(folder: Path, temporary: Path) -> None:
    for cut_short in folder.glob("step-*.tmp"):
        shutil.rmtree(cut_short, ignore_errors=True)
    temporary.mkdir(parents=True)


def _write_shard(training: Training, folder: Path, agents: list[int]) -> dict[str, Any]:
    from safetensors.torch import save as to_bytes

    name = f"agents-{agents[0]:05d}-{agents[-1]:05d}.safetensors"
    data = to_bytes({key: row.detach().cpu().contiguous() for key, row in training.spread(rows_of(training)).items()})
    write_file(folder / name, data)
    return {"file": name, "agents": agents, "bytes": len(data), "sha256": sha256(data).hexdigest()}


def _seal_off(
    training: Training, temporary: Path, final: Path, description: dict[str, Any], shards: list[dict[str, Any]]
) -> None:
    """Write the manifest, give the folder its name, and delete old checkpoints."""
    manifest = {
        "format": FORMAT,
        "step": training.step,
        "seconds": training.seconds,
        "samples": training.oracle.samples,
        "rounds": training.channels.rounds(),
        "description": description,
        "shards": shards,
    } | training.extra()
    for shard in shards:
        if not (temporary / shard["file"]).is_file():
            raise OSError(f"{temporary / shard['file']} is not there: all processes must see the same folder")
    sealed = manifest | {"sha256": seal(manifest)}
    write_file(temporary / "manifest.json", json.dumps(sealed, indent=1).encode())
    if final.exists():  # a damaged one, or the run would have continued from it
        shutil.rmtree(final)
    os.replace(temporary, final)
    for old in found(final.parent)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)


def restore(
    training: Training, folder: Path, description: dict[str, Any], words: Words = alone, own: bool = False
) -> Restored | None:
    """Restore a training that has just begun from the newest usable checkpoint; None if there is none.

    own: the folder is this process's own, and holds its agents only.

    Raises:
        CheckpointError: there are checkpoints, but of another run, or all of them are damaged.
    """
    from safetensors import SafetensorError

    agents = training.holds
    reasons = []
    for name in reversed(json.loads(words(json.dumps([path.name for path in found(folder)]))[0])):
        manifest: dict[str, Any] = {}
        rows: dict[str, Tensor] = {}
        reason, extra = "", b""
        try:
            manifest, rows = _read(folder / name, agents, own)
            extra = _read_extra(folder / name, manifest)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
            reason = f"{name}: {error}"
        if told := next(filter(None, words(reason)), None):
            reasons.append(told)
            continue
        _compare(manifest["description"], description)
        _fill(training, manifest, rows, own)
        if reasons and (own or agents[0] == 0):
            getLogger(__name__).warning("%s; continuing from %s", "; ".join(reasons), name)
        counts = _summed([shard.get("counts", {}) for shard in manifest["shards"]])
        return Restored(training.step, counts, extra)
    if reasons:
        raise CheckpointError(
            f"all checkpoints are damaged ({'; '.join(reasons)}); remove {folder} to start from step 0"
        )
    return None


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(int(own.get(name, 0)) for own in counts) for name in sorted(set().union(*counts))}


def found(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    if not folder.is_dir():
        return []
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.match(path.name))]
    return [path for _, path in sorted(numbered)]


def _read(folder: Path, wanted: Sequence[int], own: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest and the rows of the given agents; every size and checksum is compared before use."""
    from safetensors.torch import load as from_bytes

    manifest = json.loads((folder / "manifest.json").read_text())
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError("the manifest has another format")
    if manifest.pop("sha256", None) != seal(manifest) or folder.name != f"step-{manifest['step']}":
        raise CheckpointError("the manifest is damaged (checksum)")
    agents: list[int] = []
    needed = set(wanted)
    parts: dict[int, dict[str, Tensor]] = {}
    for shard in manifest["shards"]:
        if Path(shard["file"]).name != shard["file"]:
            raise CheckpointError(f"{shard['file']!r} is not a file in the checkpoint's own folder")
        agents += shard["agents"]
        if not needed & set(shard["agents"]):
            continue
        path = folder / shard["file"]
        if path.stat().st_size != shard["bytes"]:
            raise CheckpointError(f"{path.name} has {path.stat().st_size} bytes instead of {shard['bytes']}")
        data = path.read_bytes()
        if sha256(data).hexdigest() != shard["sha256"]:
            raise CheckpointError(f"{path.name} is damaged (checksum)")
        held = from_bytes(data)
        if any(len(row) != len(shard["agents"]) for row in held.values()):
            raise CheckpointError(f"not every variable of {path.name} has a row for each of its agents")
        parts |= {agent: {key: row[at] for key, row in held.items()} for at, agent in enumerate(shard["agents"])}
    if agents != (list(wanted) if own else list(range(len(agents)))):
        raise CheckpointError("the shards do not hold every agent once, in order")
    if needed - parts.keys():
        raise CheckpointError(f"it holds {len(agents)} agents, not agent {min(needed - parts.keys())}")
    return manifest, {key: torch.stack([parts[agent][key] for agent in wanted]) for key in parts[wanted[0]]}


def _read_extra(folder: Path, manifest: dict[str, Any]) -> bytes:
    about = manifest["shards"][0].get("extra")
    if about is None:
        return b""
    data = (folder / EXTRA).read_bytes()
    if len(data) != about["bytes"] or sha256(data).hexdigest() != about["sha256"]:
        raise CheckpointError(f"{EXTRA} is damaged (checksum)")
    return data


def seal(manifest: dict[str, Any]) -> str:
    """The checksum of a manifest's values, independent of their layout in the file."""
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _compare(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))  # tuples come back as lists
    different = [key for key in sorted(saved.keys() | wanted.keys()) if saved.get(key) != wanted.get(key)]
    if different:
        details = "; ".join(f"{key}: {saved.get(key)!r} there, {wanted.get(key)!r} here" for key in different)
        raise CheckpointError(
            f"the checkpoint belongs to another run ({details}); use another folder, or the same settings"
        )


def _fill(training: Training, manifest: dict[str, Any], rows: dict[str, Tensor], own: bool) -> None:
    n = training.agents_in_all
    if not own and (held := sum(len(shard["agents"]) for shard in manifest["shards"])) != n:
        raise CheckpointError(f"the checkpoint does not hold {n} agents, but {held}")
    try:
        training.prepare(manifest)
        mine = training.gathered(dict(rows))
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"what the checkpoint says of its members cannot be used ({error})") from None
    if "drawn" in mine:
        training.drawn = mine.pop("drawn").to(training.state.x)
    training.channels.expect(_under("links.", mine))
    expected = rows_of(training)
    expected.pop("drawn", None)
    if mine.keys() != expected.keys() or any(mine[key].shape != row.shape for key, row in expected.items()):
        raise CheckpointError("the checkpoint holds other variables than this algorithm has")
    for name, row in training.state.rows().items():
        row.copy_(mine[f"state.{name}"])
    training.channels.load(_under("links.", mine), manifest["rounds"])
    training.oracle.load(_under("oracle.", mine))
    training.step, training.seconds = int(manifest["step"]), float(manifest["seconds"])
    training.oracle.samples = int(manifest["samples"])
    try:
        training.load_extra(manifest)
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"what the checkpoint says of its clock and its events cannot be used ({error})"
        ) from None


def _under(prefix: str, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): row for key, row in rows.items() if key.startswith(prefix)}


def write_file(path: Path, data: bytes) -> None:
    """Write a new file, and have it on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
