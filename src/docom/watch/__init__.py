"""What a run between sites looks like: a page on the local host, live while the run goes on, and of a finished run.

`find` says where the files of the sites are, `look` reads them, `render` makes the page and `serve` keeps it up to date. All is
read from files that the sites write anyway (`docom.sites.journal`, `docom.sites.now`, ``metrics.jsonl``), so that a site does not
notice who watches it.
"""

from __future__ import annotations

from docom.watch.page import render
from docom.watch.server import PORT, listen, serve
from docom.watch.sources import Source, find
from docom.watch.view import look

__all__ = ["PORT", "Source", "find", "listen", "look", "render", "serve"]
