"""The command line. Heavy modules are imported inside the commands, so that ``docom --help`` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: errors that a user can correct are one line, not a traceback."""
    from docom.cli.app import app

    try:
        app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        from docom.cli.commands import FAILED, tell

        tell(error)
        sys.exit(FAILED)
