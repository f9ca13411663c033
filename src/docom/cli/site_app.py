"""The commands of `docom site` and their flags."""

from __future__ import annotations

import sys
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


File = Annotated[Path, typer.Argument(help="The members' file.")]
Name = Annotated[str, typer.Option("--as", help="Which of its members this site is.")]
Key = Annotated[
    Path | None, typer.Option("--key", help="Its private key; else keys/NAME.secret beside the members' file.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where its checkpoints and its log go; else NAME beside the members' file."),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen", help="Address of this machine to accept connections at, if others reach it at another one."
    ),
]


@site_app.command("check")
def site_check(
    federation: File,
    name: Name,
    key: Key = None,
    folder: Folder = None,
    listen: Listen = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Longest time to wait for the other sites.", min=1)] = 120,
) -> None:
    """Say which links of this site can be opened, and measure them, while the other sites check theirs or already run.

    Exit status: 0 if all links are ready, else 1.
    """
    from docom.cli import sites

    sites.check(federation, name, sites.Where(key, folder, listen), seconds)


@site_app.command("watch")
def site_watch(
    where: Annotated[
        Path, typer.Argument(help="The folder of a site, a folder that holds those of several, or the members' file.")
    ],
    name: Annotated[str | None, typer.Option("--as", help="With a members' file: which of its members.")] = None,
    port: Annotated[
        int, typer.Option("--port", help="Port of this machine; 0 for any free one.", min=0, max=65535)
    ] = 8517,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the page as it is now to this file, and serve nothing.")
    ] = None,
) -> None:
    """Show a run between sites on a page of this machine, live; or a finished one. Ctrl-C ends it.

    Loss and disagreement, what every site does, every link, what is sent next. Only programs of this machine can open the page,
    and nothing can be changed there.
    """
    from docom.cli import watching

    watching.watch(where, name, port, out)


@site_app.command("demo")
def site_demo(
    steps: Annotated[int, typer.Option("--steps", help="Number of rounds.", min=30)] = 1200,
    out: Annotated[Path, typer.Option("--out", help="Folder for all of it.")] = Path("demo-sites"),
) -> None:
    """Four sites on this machine with real keys; one is killed and started again while you watch. About a minute."""
    from docom.cli import site_demo

    site_demo.demo(out, steps)


@site_app.command("run")
def site_run(
    federation: File,
    name: Name,
    key: Key = None,
    folder: Folder = None,
    listen: Listen = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda; each site chooses its own.")] = "cpu",
    threads: Annotated[
        int, typer.Option("--threads", help="CPU threads, if the members' file does not say.", min=1)
    ] = 1,
    checkpoint_seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", help="Time between checkpoints; 0 for one every step.", min=0)
    ] = 60,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again from step 0, which all sites must do together.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data folder; else $DOCOM_DATA, else the user's cache.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too.")] = False,
) -> None:
    """Run what the members' file describes, as one of its sites; or continue, where the site was stopped or killed.

    Start all sites, in any order. Ctrl-C saves and stops this one; the others wait for it as long as their patience lasts.
    """
    from docom.cli import sites
    from docom.cli.commands import Launch

    launch = Launch(
        None, True, checkpoint_seconds, "docom " + " ".join(sys.argv[1:]), overwrite=overwrite, tensorboard=tensorboard
    )
    sites.run(federation, name, sites.Where(key, folder, listen), launch, data, device, threads)
