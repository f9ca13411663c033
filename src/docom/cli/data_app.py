"""The commands of `docom data` and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from docom.cli.options import Data, option

data_app = typer.Typer(help="Get, add and list data sets.", no_args_is_help=True)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="mnist.")], data: Data = None) -> None:
    """Download a public data set, with checksums; an interrupted download continues where it stopped."""
    from docom.cli import datasets

    datasets.get(name, data)


@data_app.command("add")
def data_add(
    what: Annotated[
        str, typer.Argument(help="A file or folder of your own; or, with --from, mnist, femnist, a9a, ...")
    ],
    source: Annotated[Path | None, option("--from", "Folder or file that holds a public data set.")] = None,
    name: Annotated[str | None, option("--name", "What your own data are to be called.")] = None,
    target: Annotated[str | None, option("--target", "Column to predict; image folders need none.")] = None,
    by: Annotated[str | None, option("--by", 'Column that says whose a sample is; "folder" for images.')] = None,
    drop: Annotated[list[str] | None, option("--drop", "Column to leave out (repeatable).")] = None,
    one_hot: Annotated[
        list[str] | None, option("--one-hot", "Column of text; a column per value (repeatable).")
    ] = None,
    missing: Annotated[str | None, option("--missing", "drop samples with missing values, or take the mean.")] = None,
    size: Annotated[int | None, option("--size", "Bring images to this many pixels per side.", 1)] = None,
    data: Data = None,
    replace: Annotated[bool, typer.Option("--replace", help="Instead of what is there.")] = False,
) -> None:
    """Take data you have: checked by reading, then copied into the data folder.

    Your own: CSV, Parquet, .npz, a folder of images, a Hugging Face datasets folder.
    """
    from docom.cli import datasets

    if source is not None:
        datasets.add(what, source, data, replace)
        return
    options = {
        "target": target,
        "by": by,
        "drop": drop or (),
        "one_hot": one_hot or (),
        "missing": missing,
        "size": size,
    }
    datasets.add_own(Path(what), name, options, data, replace)


@data_app.command("list")
def data_list(data: Data = None) -> None:
    """What is there, and how to get the rest."""
    from docom.cli import datasets

    datasets.show(data)
