"""The command line. Heavy modules are imported inside the commands, so that ``docom --help`` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: errors that a user can correct are one line, not a traceback."""
    from docom.cli.app import app

    try:
        app()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        from docom.cli.commands import status_of, tell

        tell(error)
        sys.exit(status_of(error))
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)):
            raise
        from docom.cli.commands import FAILED, tell

        tell(
            MemoryError(
                "there is not enough memory for this run; take a smaller --batch-size, fewer --agents or float32"
            )
        )
        sys.exit(FAILED)
