"""The data folder: one subfolder per data set, in the files' own formats.

`data_home` returns the folder; all other functions take it as an argument. `get` downloads, `add` copies files
that a user has, `listing` shows what is there and how to get the rest, `locate` finds one data set.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docom.data.catalogue import DOWNLOADS, FORMATS, KNOWN, Download, Format
from docom.data.download import DownloadError, Progress, fetch
from docom.data.files import DataError, existing
from docom.data.idx import mnist_files
from docom.data.samples import STORED, Samples, save_samples


@dataclass(frozen=True)
class Entry:
    """A line of the listing; `path` is the folder of the data set, present or not; None for generated data."""

    name: str
    present: bool
    path: Path | None
    about: str
    how: str


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """The data folder: `$DOCOM_DATA`, else `docom` in the user's cache.

    Commands call it; readers are told where files are.

    Args:
        environ: used instead of the process's environment.
    """
    environ = os.environ if environ is None else environ
    if chosen := environ.get("DOCOM_DATA"):
        return Path(chosen).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    # The XDG standard: a relative path there must be ignored.
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "docom"


def get(
    name: str,
    home: Path,
    progress: Progress | None = None,
    downloads: Mapping[str, Download] = DOWNLOADS,
    mirrors: Sequence[str] | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download a data set into the folder, or complete what is there; returns its path.

    Args:
        name: of a data set in `downloads`; for others the error says how to get it.
        home: the data folder.
        progress: called with (bytes done, bytes in all, file name).
        downloads: where each data set can be downloaded.
        mirrors: used instead of those in `downloads`; URLs ending in `/`.
        timeout: seconds without an answer after which the next mirror is tried.
    """
    if name not in downloads:
        _check_known(name, home)
        how = KNOWN[name].how if name in KNOWN else f"docom data add {name} --from DIR"
        raise DataError(f"{name} cannot be downloaded from here; {how}")
    folder, plan = home / name, downloads[name]
    found = _files_of(name, folder)
    if found and not set(found) & {remote.name for remote in plan.files}:
        return folder  # added by the user under the files' other names
    try:
        for remote in plan.files:
            fetch(remote, mirrors or plan.mirrors, folder, progress, timeout)
    except DownloadError as error:
        raise DownloadError(
            f"{name}: {error}\nCheck the network and run `docom data get {name}` again (it resumes), or, if "
            f"you have the files, `docom data add {name} --from DIR`."
        ) from error
    return folder


def add(name: str, source: Path | str, home: Path, replace: bool = False) -> Path:
    """Take a data set from files that the user has: read them with every check, then copy them in.

    Args:
        name: a known name, or any other for a LIBSVM file or a folder of MNIST's shape.
        source: the folder of the files, or the one file.
        home: the data folder.
        replace: replace a data set that is already there.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or name == "synthetic":
        raise DataError(f"{name!r} cannot be added; a name is letters, digits, '.', '_', '-', and not 'synthetic'")
    source, target = existing(source), home / name
    if _files_of(name, target) and not replace:
        raise DataError(
            f"{name} is already in {target}; choose another name, or replace it (--replace; replace=True in Python)"
        )
    form = _format(name, source)
    files = form.files(source, name)
    form.read(source, name)
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-") as work:
        staged, former = Path(work) / "new", Path(work) / "former"
        for relative, path in files.items():
            (staged / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, staged / relative)
        _swap(staged, target, former)
    return target


def add_samples(name: str, samples: Samples, home: Path, replace: bool = False) -> Path:
    """Take samples that were read before; see `docom.data.read_samples`."""
    if name in KNOWN:
        raise DataError(f"{name} is the name of a public data set; choose another --name")
    with tempfile.TemporaryDirectory() as work:
        save_samples(samples, Path(work) / STORED)
        return add(name, Path(work) / STORED, home, replace)


def _swap(staged: Path, target: Path, former: Path) -> None:
    """Rename `staged` to `target`; what was there is moved out of the way first, and back if that fails."""
    try:
        if target.exists():
            target.rename(former)
        staged.rename(target)
    except BaseException:
        if former.exists():
            former.rename(target)
        raise


def locate(name: str, home: Path) -> Path:
    """The folder of a data set that is there; the error says how to get one that is not."""
    if name == "synthetic":
        raise DataError("synthetic data is generated, not stored; use leaf_synthetic.generate()")
    _check_known(name, home)
    if not _files_of(name, home / name):
        raise DataError(f"{name} is not in {home}; to get it: {KNOWN[name].how}")
    return home / name


def listing(home: Path) -> list[Entry]:
    """All known data sets and all others in the folder: what is there, and how to get the rest."""
    entries = []
    for name, known in KNOWN.items():
        folder = home / name if known.form else None
        entries.append(Entry(name, folder is None or bool(_files_of(name, folder)), folder, known.about, known.how))
    for name in _others(home):
        entries.append(Entry(name, True, home / name, "added by the user", f"docom data add {name} --from DIR"))
    return entries


def _others(home: Path) -> list[str]:
    folders = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    return [name for name in folders if name[0] != "." and name not in KNOWN and _files_of(name, home / name)]


def _format(name: str, source: Path) -> Format:
    if name in KNOWN:
        return FORMATS[KNOWN[name].form]
    if source.name == STORED or (source / STORED).is_file():
        return FORMATS["samples"]
    try:
        mnist_files(source)
    except DataError:
        return FORMATS["libsvm"]
    return FORMATS["idx"]


def _files_of(name: str, folder: Path) -> dict[str, Path]:
    """The files of a data set in its folder, none if it is not there or not complete."""
    try:
        return _format(name, folder).files(folder, name) if folder.is_dir() else {}
    except DataError:
        return {}


def _check_known(name: str, home: Path) -> None:
    names = [*KNOWN, *_others(home)]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise DataError(
            f"no data set {name!r}; {meant}there are {', '.join(names)}; "
            "docom data add NAME --from DIR takes a LIBSVM file or a folder of IDX files under any name"
        )
