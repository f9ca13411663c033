"""Where a run comes from: provenance.json."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from docom import __version__, plugins


def provenance(command: str) -> dict[str, Any]:
    """The machine, versions and command of a run."""
    import numpy

    return {
        "docom": __version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "plugins": plugins.digests(),
        "command": command,
        "directory": os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str | None:
    """The commit of this source tree, with ``-dirty`` if it was changed; None if installed without git."""
    source = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(source.parent), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:  # there is no git
            return None
        return answer.stdout.strip() or None if answer.returncode == 0 else None

    # If docom is installed inside a user's own repository, this file is not tracked there, and that commit is not ours.
    tracked = git("ls-files", "--error-unmatch", source.name)
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") if tracked else None
