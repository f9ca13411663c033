"""Shared by all readers: one error, and opening a file that may be gzipped.

A file from outside may be truncated, mislabelled or made to exhaust memory, so a reader takes a stream from `opened`
and reads no more from it than a limit that it has set before.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

Stream = IO[bytes] | gzip.GzipFile

# Every data set here is far smaller; a header that announces more is damaged or hostile.
MAX_BYTES = 4 << 30

# Data sets shrink to a tenth by compression, text of few words to a fiftieth. Deflate can reach a thousandth, which only zeros
# and files made to exhaust memory do: of a small file little is unpacked, even if its header declares more.
MOST_EXPANSION, ALWAYS_UNPACKED = 50, 64 << 20


class DataError(ValueError):
    """A data file or request that cannot be used: says which, what is wrong and what to do."""


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """The bytes of a file, decompressed if it is gzipped (by its first bytes, not by its name).

    Damage to the compression and failures to read become a `DataError` that names the file.
    """
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if gzipped:
                with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield unpacked
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip data ({error}); fetch the file again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def unpacked_at_most(packed: int) -> int:
    """Bytes that so many compressed ones may become."""
    return max(ALWAYS_UNPACKED, MOST_EXPANSION * packed)


def content_at_most(path: Path, stream: Stream) -> int:
    """Bytes that an opened file may hold, known before anything is read."""
    size = path.stat().st_size
    return unpacked_at_most(size) if isinstance(stream, gzip.GzipFile) else size


def existing(path: Path | str) -> Path:
    """The path, if there is something at it."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    return path


def read_at_most(stream: Stream, size: int) -> bytearray:
    """Up to `size` bytes, taken in pieces so that memory follows what is there, not what was announced."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = stream.read(min(1 << 20, size - len(pieces)))
        if not piece:
            break
        pieces += piece
    return pieces
