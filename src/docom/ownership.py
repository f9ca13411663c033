"""One process at a time in a folder.

The owner of a folder holds a lock of the operating system on the file ``owner.json`` in it, which names the owner. The system
releases the lock when the process ends, in any way, so a file that is left does not block other processes. If the file system
has no such locks, the file itself is the lock, and one that is left must be removed by hand.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

OWNER = "owner.json"
PATIENCE = 2.0  # seconds: a process that was killed may need a moment until it is gone
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FolderInUse(FileExistsError):
    """Another process owns the folder."""


class _Busy(Exception):
    """Another process has the lock. by_hand: whether the file must be removed by hand if that process has ended."""

    def __init__(self, by_hand: bool = False) -> None:
        self.by_hand = by_hand


@contextmanager
def owned(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Own a folder, which is created if it does not exist; if it is still empty at the end, it is removed.

    Raises:
        FolderInUse: another process, or another thread of this one, owns it and did so for ``patience`` seconds more.
    """
    made = _missing(folder)
    descriptor = _taken(folder, time.monotonic() + patience)
    try:
        yield
    finally:
        # Removed before it is unlocked: a process that has opened the file by then finds that it is no longer in the folder.
        with suppress(OSError):
            (folder / OWNER).unlink()
        os.close(descriptor)
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def _missing(folder: Path) -> list[Path]:
    """The folder and its parents that do not exist, innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _taken(folder: Path, deadline: float) -> int:
    """The open and locked file."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _open(folder / OWNER)
        except FileExistsError:
            raise FileExistsError(f"{folder} is a file, and a folder is needed; choose another --out") from None
        except FileNotFoundError:  # its last owner has just removed the empty folder
            if time.monotonic() > deadline:
                raise
        except _Busy as busy:
            if time.monotonic() > deadline:
                raise FolderInUse(_in_use(folder, busy.by_hand)) from None
        time.sleep(0.05)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT
    try:
        descriptor, fresh = os.open(path, flags | os.O_EXCL, 0o644), True
    except FileExistsError:
        descriptor, fresh = os.open(path, flags, 0o644), False
    try:
        if _locked(descriptor):
            if not _is_there(path, descriptor):  # another process has owned it by now, and has removed it
                raise _Busy
        elif not fresh:
            raise _Busy(by_hand=True)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": _now()}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _locked(descriptor: int) -> bool:
    """Lock an open file; False if the system has no locks for it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _Busy from None
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise
    return True


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, by_hand: bool) -> str:
    path = folder / OWNER
    try:
        owner = json.loads(path.read_bytes())
        who = f"process {owner['pid']} on {owner['host']} since {owner['started']}"
    except (OSError, ValueError, LookupError, TypeError):
        who = "another process"
    if by_hand:
        return (
            f"{folder} is in use by {who}; this file system has no locks, so if that process has ended remove {path}, "
            "or choose another --out"
        )
    return f"{folder} is in use by {who}; wait until it ends, or choose another --out"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
