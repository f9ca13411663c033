"""Fetching files over HTTP: several mirrors, resumption, checksums.

What has arrived is kept in `NAME.part` when a connection breaks; the next attempt, mirror or run requests only the
rest. A file gets its name when its checksum is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from docom.data.files import DataError

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, file name

_PIECE = 1 << 16
_ATTEMPTS = 5  # at one mirror, as long as each brings new bytes


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch: its name at every mirror, its size and its checksum."""

    name: str
    size: int
    sha256: str


class DownloadError(DataError):
    """No mirror delivered the file; the message lists the failure of each."""


class _Failure(Exception):
    """Why one attempt ended early."""


def fetch(
    remote: RemoteFile,
    mirrors: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> Path:
    """Fetch one file into `folder` unless the right one is there, and return its path.

    Args:
        remote: name, size and checksum.
        mirrors: URLs ending in `/` that the name is appended to, tried in order.
        folder: is created if it does not exist.
        progress: called with (bytes done, bytes in all, name).
        timeout: seconds without an answer after which the next mirror is tried.
    """
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    report = progress or (lambda done, total, name: None)
    if _is_right(target, remote):
        report(remote.size, remote.size, remote.name)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for mirror in mirrors:
        try:
            _from_mirror(mirror + remote.name, part, remote, report, timeout)
        except _Failure as failure:
            failures.append(f"  {mirror}{remote.name}: {failure}")
        else:
            part.replace(target)
            return target
    kept = f" {_length(part):,} of {remote.size:,} bytes are kept." if _length(part) else ""
    raise DownloadError(f"{remote.name} could not be downloaded.{kept}\n" + "\n".join(failures))


def _from_mirror(url: str, part: Path, remote: RemoteFile, report: Progress, timeout: float) -> None:
    """Complete the part file from one mirror and check it; a wrong file is removed."""
    if _length(part) >= remote.size and not _is_right(part, remote):
        part.unlink()
    last: _Failure | None = None
    for _ in range(_ATTEMPTS):
        before = _length(part)
        if before >= remote.size:
            break
        try:
            _continue(url, part, remote, report, timeout)
        except _Failure as failure:
            last = failure
            if _length(part) <= before:
                raise
    if last is not None and _length(part) < remote.size:
        raise last
    if not _is_right(part, remote):
        part.unlink()
        raise _Failure("what was sent does not have the published checksum; removed")


def _continue(url: str, part: Path, remote: RemoteFile, report: Progress, timeout: float) -> None:
    """One request for what is missing, appended to the part file as it arrives."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    done = _length(part)
    headers = {"User-Agent": "docom"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=timeout) as response:
            # A server that ignores the range sends the whole file again, with status 200.
            resumed = response.status == 206
            if resumed and not str(response.headers.get("Content-Range")).startswith(f"bytes {done}-"):
                raise _Failure(f"answered with range {response.headers.get('Content-Range')} to bytes={done}-")
            done = done if resumed else 0
            with part.open("ab" if resumed else "wb") as out:
                report(done, remote.size, remote.name)
                while piece := response.read(_PIECE):
                    done += len(piece)
                    if done > remote.size:
                        out.truncate(0)
                        raise _Failure(f"sends more than the {remote.size:,} bytes of this file")
                    out.write(piece)
                    report(done, remote.size, remote.name)
    except HTTPError as error:
        error.close()
        raise _Failure(f"HTTP status {error.code} ({error.reason})") from error
    except (OSError, HTTPException) as error:  # URLError and time-outs are OSErrors
        raise _Failure(str(getattr(error, "reason", None) or error or type(error).__name__)) from error
    if done < remote.size:
        raise _Failure(f"the connection closed after {done:,} of {remote.size:,} bytes")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_right(path: Path, remote: RemoteFile) -> bool:
    if _length(path) != remote.size:
        return False
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == remote.sha256
