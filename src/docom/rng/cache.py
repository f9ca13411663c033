"""Where compiled kernels are kept between runs: numba unpickles what it finds there, so no other user may write to it."""

from __future__ import annotations

import os
import stat
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

PACKAGE = Path(__file__).parents[1]


@cache
def kernel_folder() -> Path | None:
    """The user's own folder for compiled kernels, made where it is not there; None where no folder can be trusted.

    Numba's choice would be a folder beside the source or a shared one. This one belongs to the user and is open to no one else,
    which is checked before anything is read. Each state of the source has a folder of its own, because numba does not see that
    a function inlined from another file has changed; folders of earlier states of the same installation are removed.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "docom-kernels"
        if not _is_private(home):
            return None
        here = sha256(str(PACKAGE).encode()).hexdigest()[:12]
        folder = home / f"{here}-{_source_digest()}"
        if not folder.is_dir():
            for earlier in home.glob(f"{here}-*"):
                rmtree(earlier, ignore_errors=True)
            folder.mkdir(exist_ok=True)
    except (
        OSError,
        RuntimeError,
    ):  # no home, or one that cannot be written to: kernels are compiled again in every process
        return None
    return folder


def _is_private(folder: Path) -> bool:
    """Whether a folder, made where it is missing, belongs to this user and is open to no one else."""
    if not hasattr(os, "geteuid"):  # no owners and modes to go by
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077:
        return True
    warnings.warn(
        f"{folder} is not used, and kernels are compiled again: it must be a folder of this user that nobody else may read or "
        "write (mode 0700), because compiled kernels are unpickled from it. Remove it, and docom makes it again",
        stacklevel=2,
    )
    return False


def _source_digest() -> str:
    """Of all files that hold kernels."""
    total = sha256()
    for path in sorted(
        [*PACKAGE.glob("rng/*.py"), *PACKAGE.glob("numerics/compiled/*.py"), *PACKAGE.glob("wire/*.py")]
    ):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]
