"""What `docom site` does: keys and members' files."""

from __future__ import annotations

from pathlib import Path

from docom.cli.commands import say
from docom.sites import make_keys
from docom.sites.federation import EXAMPLE


def keys(name: str, folder: Path) -> None:
    """See `docom.cli.site_app.site_keys`."""
    path, public = make_keys(name, folder)
    say(f"private key: {path} (keep it on this machine; make a copy for the case that the disk fails)")
    say("for the members' file, which all sites have:")
    say(f"  - name: {name}\n    key: '{public}'")


def init(path: Path) -> None:
    """See `docom.cli.site_app.site_init`."""
    try:
        with path.open("x") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise FileExistsError(f"{path} exists already; choose another name") from None
    say(f"{path} written; put in the members' names, keys and addresses, and give the same file to all of them")
