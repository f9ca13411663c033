"""The commands of `docom site` and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

site_app = typer.Typer(
    help="Train with other sites over connections that are encrypted and authenticated.", no_args_is_help=True
)


@site_app.command("keys")
def site_keys(
    name: Annotated[str, typer.Argument(help="The name of this site, such as basel.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the private key.")] = Path("keys"),
) -> None:
    """Make the key pair of a site; prints its public part, for the members' file. Never replaces a key."""
    from docom.cli import sites

    sites.keys(name, out)


@site_app.command("init")
def site_init(
    file: Annotated[Path, typer.Argument(help="The members' file to write.")] = Path("federation.yaml"),
) -> None:
    """Write a members' file with its settings explained, to be filled in. Replaces no file."""
    from docom.cli import sites

    sites.init(file)
