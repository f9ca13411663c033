"""What `docom site watch` does."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from docom import watch as pages
from docom.cli.commands import say
from docom.runfolder import write_whole


def watch(where: Path, name: str | None, port: int, out: Path | None) -> None:
    """See `docom.cli.site_app.site_watch`."""
    sources = pages.find(where, name)
    if out is not None:
        write_whole(out, pages.render(pages.look(sources)).encode())
        say(f"{out} written")
        return

    def now() -> list[pages.Source]:
        with suppress(OSError, ValueError):  # while files are moved, what was there before
            return pages.find(where, name)
        return sources

    seen = ", ".join(source.name for source in sources)
    pages.serve(now, pages.listen(port), lambda url: say(f"{seen}: {url} (on this machine only; Ctrl-C ends it)"))
    say("the page has ended; this does not touch the run")
