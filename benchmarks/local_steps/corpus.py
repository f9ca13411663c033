"""Texts as bytes, from this machine: Python's own library, installed packages, and Debian's dictionaries and documents."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LIBRARY = Path(sysconfig.get_path("stdlib"))
PACKAGES = Path(sysconfig.get_path("purelib"))
SHARE = Path("/usr/share")
LEAST = 200_000  # bytes of a source that is worth an agent
HELD_OUT = 0.1  # of every source, its end


def _files(folder: Path, pattern: str, without: Iterable[str] = ()) -> list[Path]:
    return [path for path in sorted(folder.glob(pattern)) if not set(path.relative_to(folder).parts) & set(without)]


def _candidates() -> dict[str, list[Path]]:
    """Names of sources and their files, those of different kinds first."""
    parts = ("test", "site-packages", "lib2to3", "idlelib", "asyncio", "email", "encodings", "pydoc_data")
    return {
        "modules of Python's library": _files(LIBRARY, "*.py"),
        "dict-gcide": _files(SHARE / "dictd", "gcide.dict.dz"),
        "wordnet-base": _files(SHARE / "wordnet", "data.*"),
        "python3-doc": _files(SHARE / "doc", "python3*/html/_sources/**/*.txt"),
        "tests of Python's library": _files(LIBRARY / "test", "*.py"),
        "torch": _files(PACKAGES / "torch", "*.py") + _files(PACKAGES / "torch" / "nn", "**/*.py"),
        "numpy": _files(PACKAGES / "numpy", "**/*.py"),
        "packages of Python's library": _files(LIBRARY, "*/*.py", parts),
        "networkx": _files(PACKAGES / "networkx", "**/*.py"),
        "sympy": _files(PACKAGES / "sympy", "**/*.py"),
        "encodings of Python's library": _files(LIBRARY / "encodings", "*.py"),
    }


def _bible(most: int) -> bytes:
    """Debian's bible-kjv-text, as its program writes it."""
    program = shutil.which("bible")
    if program is None:
        return b""
    return subprocess.run([program, "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout[:most]


def _text(files: Sequence[Path], most: int) -> bytes:
    found = b""
    for path in files:
        with gzip.open(path) if path.suffix in (".dz", ".gz") else path.open("rb") as file:
            found += file.read(most)
        if len(found) >= most:
            break
    return found[:most]


def _texts(most: int, folder: Path | None) -> Iterator[tuple[str, bytes]]:
    """Names and texts, from a folder of gathered ones or from this machine."""
    if folder is not None:
        for path in sorted(folder.glob("*.gz")):
            yield path.name.removesuffix(".gz").partition(" ")[2], _text([path], most)
        return
    yield "bible-kjv-text", _bible(most)
    for name, files in _candidates().items():
        yield name, _text(files, most)


def gather(folder: Path, count: int, most: int) -> None:
    """Keep the sources of this machine in a folder, for one that has fewer."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, text) in enumerate(sources(count, most).items()):
        beside = folder / f"{number:02d}.part"
        beside.write_bytes(gzip.compress(text, mtime=0))
        beside.replace(folder / f"{number:02d} {name}.gz")


def sources(count: int, most: int, folder: Path | None = None) -> dict[str, bytes]:
    """So many sources of at most ``most`` bytes. Where there are fewer, they are cut, the largest ones into more parts."""
    found = {}
    for name, text in _texts(most, folder):
        if len(text) >= LEAST:
            found[name] = text
        if len(found) == count:
            return found
    if not found:
        raise SystemExit(
            "this machine has no sources of text; apt-get install dict-gcide wordnet-base python3-doc bible-kjv"
        )
    share, more = divmod(count, len(found))
    parts = {}
    for place, name in enumerate(sorted(found, key=lambda name: -len(found[name]))):
        text, number = found[name], share + (place < more)
        for part in range(number):
            title = f"{name}, part {part + 1} of {number}" if number > 1 else name
            parts[title] = text[part * len(text) // number : (part + 1) * len(text) // number]
    return parts


def windows(text: bytes, context: int) -> Tensor:
    """``[count, context + 1]`` bytes; the last byte of a window is the first of the next one."""
    values = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
    return values.unfold(0, context + 1, context).contiguous()


def shards(
    texts: Sequence[bytes], agents: int, context: int, mixed: bool, held_out: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Every agent's windows as inputs and targets, and ``held_out`` windows that nobody trains on, as many of each source."""
    train, rest = [], []
    for text in texts:
        every = windows(text, context)
        last = int(len(every) * (1 - HELD_OUT))
        train.append(every[:last])
        places = torch.linspace(last, len(every) - 1, held_out // len(texts)).to(torch.int64)
        rest.append(every[places])
    if mixed:
        draw = torch.Generator().manual_seed(0)
        everything = torch.cat(train)
        train = list(everything[torch.randperm(len(everything), generator=draw)].tensor_split(agents))
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in train[:agents]], torch.cat(rest)
