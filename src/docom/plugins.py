"""Methods, compressors, problems and presets from outside the package: files named by the user, and installed packages.

A plugin is Python code that calls `docom.register`. A file is given as ``--plugin mine.py``, under ``plugins:`` in a
configuration, or to `load`; a package names a module of its own under the entry point group ``docom.plugins``, which
`load_installed` imports. Every plugin has a digest, by which a run knows its plugins again: in its configuration, among the
facts that processes compare, and in the copy that its folder keeps.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from logging import getLogger
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "docom.plugins"
FOLDER = "plugins"  # where a run's folder keeps copies
MOST_BYTES = 1 << 24
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\.py")


@dataclass(frozen=True)
class Plugin:
    """Code that was loaded.

    name: of the file, or of the package with its version. digest: of the source. source, path: of a file.
    """

    name: str
    digest: str
    module: ModuleType
    source: bytes | None = None
    path: Path | None = None


_files: dict[str, Plugin] = {}  # by digest
_installed: dict[str, Plugin] | None = None  # by name; None as long as nobody has looked
_loading: list[str] = []


def load(path: Path | str) -> ModuleType:
    """Run a Python file that registers something; a file that was loaded before is not run again.

    Args:
        path: of the file.

    Returns:
        Its module.

    Raises:
        FileNotFoundError, ValueError: there is no such file, or its code fails.
    """
    return _from_file(Path(path)).module


def load_installed() -> list[Plugin]:
    """Import what installed packages name under the entry point group ``docom.plugins``.

    A package that cannot be imported is left out with a warning, so that it does not stop runs that do not need it.
    """
    global _installed
    if _installed is None:
        from importlib.metadata import entry_points

        _installed = {}
        for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
            package = entry.name if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
            try:
                with _running(package):
                    entry.load()
            except Exception as error:
                getLogger(__name__).warning("the plugin %s (%s) is left out: %s", package, entry.value, _where(error))
                continue
            module = sys.modules[entry.module]
            _installed[f"{package} ({entry.value})"] = Plugin(package, _package_digest(module), module)
    return list(_installed.values())


def digests() -> dict[str, str]:
    """The digest of every plugin by its name: what processes of one run compare."""
    found = {f"plugin {plugin.name}": plugin.digest for plugin in _files.values()}
    return found | {f"plugin {name}": plugin.digest for name, plugin in (_installed or {}).items()}


def given() -> dict[str, str]:
    """The files loaded so far, as a configuration names them: where a run's folder keeps the copy, and the digest."""
    return {f"{FOLDER}/{plugin.name}": digest for digest, plugin in _files.items()}


def paths() -> list[Path]:
    """Where the files loaded so far are."""
    return [plugin.path for plugin in _files.values() if plugin.path is not None]


def current() -> str | None:
    """The plugin whose code is being run; None outside of plugins."""
    return _loading[-1] if _loading else None


def resolve(wanted: Any, folder: Path) -> dict[str, str]:
    """What a configuration says of its plugins, in the form of `given`; the files are loaded.

    Args:
        wanted: a path, a list of paths, or a mapping as `given` makes it, from a configuration that a run has written.
        folder: of the configuration; its paths are relative to it.
    """
    if wanted is None:
        return {}
    if isinstance(wanted, dict):
        return {str(name): _known_again(str(name), str(digest), folder) for name, digest in wanted.items()}
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"plugins is a list of Python files such as [mine.py], got {wanted!r}")
    loaded = [_from_file(folder / name) for name in names]
    return {f"{FOLDER}/{plugin.name}": plugin.digest for plugin in loaded}


def sources(wanted: dict[str, str]) -> dict[str, bytes]:
    """The sources of a configuration's plugins by their path in a run's folder."""
    for name, digest in wanted.items():
        if digest not in _files:
            raise ValueError(f"{name} ({digest}) is not loaded, or was changed and loaded again; load it and try again")
    return {name: _files[digest].source or b"" for name, digest in wanted.items()}


def _known_again(name: str, digest: str, folder: Path) -> str:
    """The digest, once the plugin that has it is loaded."""
    start, _, file = name.partition("/")
    if start != FOLDER or not NAME.fullmatch(file):
        raise ValueError(
            f"plugins: {name!r} is no plugin of a run, whose names read {FOLDER}/mine.py; give a list of paths"
        )
    if digest not in _files:
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(
                f"the plugin {file} of this configuration is not at {path}; give it with --plugin {file}"
            )
        found = _digest(_read(path))
        if found != digest:
            raise ValueError(
                f"{path} is not the plugin this configuration was written for (digest {found}, not {digest}); "
                f"to take it as it is, write plugins: [{name}]"
            )
        _from_file(path)
    return digest


def _from_file(path: Path) -> Plugin:
    if not NAME.fullmatch(path.name):
        raise ValueError(
            f"a plugin is a Python file with a plain name such as mine.py (letters, digits, '_' and '-'), got {str(path)!r}"
        )
    source = _read(path)
    digest = _digest(source)
    for other in [plugin for plugin in _files.values() if plugin.name == path.name and plugin.digest != digest]:
        if other.path != path.resolve():
            raise ValueError(
                f"{path}: another plugin of that name is loaded already ({other.path}); rename one of them"
            )
        del _files[other.digest]  # an older state of this file, as when a notebook goes on after a change
    if digest not in _files:
        _files[digest] = Plugin(path.name, digest, _run(path, source, digest), source, path.resolve())
    return _files[digest]


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"there is no plugin {path}; give the path of a Python file")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: a plugin has at most {MOST_BYTES:,} bytes, this file has {path.stat().st_size:,}")
    return path.read_bytes()


def _run(path: Path, source: bytes, digest: str) -> ModuleType:
    """The module of a file's source, as read: what was digested is what runs."""
    name = f"docom_plugin_{path.stem.replace('-', '_')}_{digest}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look there for the names of a class's module
    try:
        with _running(path.name):
            exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"the plugin {path} cannot be loaded: {_where(error)}") from error
    return module


@contextmanager
def _running(name: str) -> Iterator[None]:
    _loading.append(name)
    try:
        yield
    finally:
        _loading.pop()


def _where(error: Exception) -> str:
    """An error in somebody's code in one line, with the line it came from."""
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):
        return said
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]
    if not frames:
        return said
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}{f', {line!r}' if line else ''}: {said}"


def _ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent) or file.startswith("<frozen")


def _digest(source: bytes) -> str:
    return sha256(source).hexdigest()[:16]


def _package_digest(module: ModuleType) -> str:
    """Of all sources of the package that the module belongs to; of the module alone where it belongs to none."""
    top = sys.modules[module.__name__.partition(".")[0]]
    roots = [Path(folder) for folder in getattr(top, "__path__", [])]
    files = {str(path.relative_to(root)): path for root in roots for path in root.rglob("*.py")}
    if not roots and module.__file__ is not None:
        files = {Path(module.__file__).name: Path(module.__file__)}
    total = sha256()
    for name in sorted(files):
        total.update(name.encode() + b"\0" + files[name].read_bytes())
    return total.hexdigest()[:16]
