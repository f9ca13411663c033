"""The command that runs a run again, as it can be pasted into a shell in any folder."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

from docom.report.runs import RunData

CONFIG = "config.yaml"  # in a run's folder: its complete settings, from which the same numbers come again


def command_again(run: RunData) -> str | None:
    """The run's ``config.yaml`` as a command, into a folder of its own; where there is none, the command as it was typed.

    The command as typed does not do: its paths hold in one folder only, and its ``--out`` is taken by the run itself.
    """
    typed = run.text("command")
    config = (run.folder / CONFIG).absolute()
    if not config.is_file():
        return typed
    words = ["docom", "run", str(config), "--out", f"{_name(run)}-again"]
    data = _data_folder(run, typed or "")
    if data is not None:
        words += ["--data", str(data)]
    processes = run.count("processes") or 1
    if processes > 1:
        words = ["torchrun", "--nproc-per-node", str(processes), "-m", *words]
    return shlex.join(words)


def _name(run: RunData) -> str:
    """The folder's name; that of a seed together with its parent's, which says of what."""
    parts = run.folder.absolute().parts[-2:]
    return "-".join(parts) if parts[-1].startswith("seed-") else parts[-1]


def _data_folder(run: RunData, typed: str) -> Path | None:
    """What was given as ``--data``, from the folder in which the command was typed."""
    try:
        words = shlex.split(typed)
    except ValueError:  # no command of a shell
        return None
    for word, following in pairwise([*words, ""]):
        given = following if word == "--data" else word.removeprefix("--data=") if word.startswith("--data=") else ""
        if given:
            return Path(str(run.provenance.get("directory", ".")), given).absolute()
    return None
