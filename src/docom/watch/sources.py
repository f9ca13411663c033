"""Where the files of the sites are, and what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docom.config import parse_yaml
from docom.records import Record
from docom.runfolder import RunFolder
from docom.sites import check, journal, now

MOST_SITES = 64
FILES = (journal.FILE, now.FILE, "metrics.jsonl")


@dataclass(frozen=True)
class Source:
    """A site whose files can be read here."""

    name: str
    folder: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """What has happened, in the order of time."""
        found = [event for event in journal.read(self.folder) if isinstance(event.get("time"), int | float)]
        return sorted(found, key=lambda event: float(event["time"]))

    @property
    def now(self) -> dict[str, Any]:
        """How it was last."""
        return now.read(self.folder)

    @property
    def records(self) -> list[Record]:
        """Its measurements, up to the first damaged line."""
        return RunFolder(self.folder).before(1 << 62)

    @property
    def checked(self) -> dict[str, Any]:
        """Its links as they were measured before the run, by the name of the other end."""
        return check.read(self.folder)

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration of its run; empty for a training loop of its own."""
        text = RunFolder(self.folder).config()
        found = parse_yaml(text) if text else None
        return found if isinstance(found, dict) else {}


def find(path: Path, name: str | None = None) -> list[Source]:
    """The sites whose files are there.

    Args:
        path: the folder of a site, a folder that contains those of several, or the members' file beside them.
        name: with a members' file: which of its members; by default all whose folders are beside it.

    Raises:
        FileNotFoundError: there are none.
    """
    if path.is_file():
        return _beside(path, name)
    if name is not None:
        raise ValueError(f"--as names a member of a members' file; {path} is a folder, so leave it out")
    if not path.is_dir():
        raise FileNotFoundError(f"there is neither a folder nor a members' file {path}")
    if _is_site(path):
        return [Source(str(now.read(path).get("name") or path.resolve().name), path)]
    found = [Source(one.name, one) for one in sorted(path.iterdir()) if _is_site(one)]
    if not found:
        raise FileNotFoundError(
            f"{path} holds no records of a site, nor does a folder in it: give the folder that `docom site run` writes to, or "
            "federation.yaml with --as NAME"
        )
    return found[:MOST_SITES]


def _beside(path: Path, name: str | None) -> list[Source]:
    from docom.sites.members_file import read

    federation = read(path)
    if name is not None:
        federation.position(name)
        return [Source(name, path.parent / name)]
    found = [Source(one, path.parent / one) for one in federation.names if _is_site(path.parent / one)]
    if not found:
        raise FileNotFoundError(
            f"no site of {path} has written anything beside it yet; say with --as which one to wait for, or give its folder"
        )
    return found[:MOST_SITES]


def _is_site(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in FILES)
