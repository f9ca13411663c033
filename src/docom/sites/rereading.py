"""Members come and go with a new members' file, which each owner puts in the place of the old one while sites run.

A new file has a larger ``version``. Members stay where they are in it, with their names and keys, because the number of a member
is that of its data and its messages: a member that goes is marked ``retired: true``, a new one comes at the end. Settings of the
run do not change. A file for which that does not hold is refused, and the old one stays in use.

No round is agreed on from which it holds: a link exists when both of its ends have the file that lists it, and every exchange
counts with the smaller one of the weights that its ends name, so sites with different files fit together at all times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from docom.sites.federation import Federation
from docom.sites.members_file import read
from docom.sites.site import Site
from docom.sites.skipping import OF_MEMBERS

if TYPE_CHECKING:
    from docom.sites.connections import Connections

OFTEN = 1.0  # seconds between looks at the file


class Rereading:
    """Looks at the members' file now and then, and takes a new one into use.

    renewed: is told of new and former neighbours. refused: is told why a file is not used.
    """

    def __init__(
        self,
        path: Path,
        site: Site,
        renewed: Callable[[Connections, set[int], set[int]], None],
        refused: Callable[[str], None],
    ) -> None:
        self.path, self.site, self.renewed, self.refused = path, site, renewed, refused
        self._seen, self._next = self._stamp(), 0.0

    def __call__(self, connections: Connections) -> None:
        """Look, if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + OFTEN
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        before = connections.federation
        try:
            found = read(self.path)
            why = not_after(before, found, self.site.agent)
        except (OSError, ValueError, TypeError) as error:
            why = str(error)
        if why == SAME:
            return
        if why:
            self.refused(why)
            return
        self.renewed(connections, *connections.renew(found))
        self._tell(connections, before, found)

    def _tell(self, connections: Connections, before: Federation, found: Federation) -> None:
        events, note = connections.exchange.happened, connections.exchange.note
        for number, member in enumerate(found.members):
            if number >= len(before.members):
                events("joined", member.name)
            elif member.retired and not before.members[number].retired:
                events("retired", member.name)
        events("members", found.digest[:16])
        note(f"members' file {found.digest[:16]} is in use")

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


SAME = "same"


def not_after(before: Federation, found: Federation, me: int) -> str:
    """Why a members' file cannot follow another one; empty if it can, `SAME` if it is the same."""
    if found.digest == before.digest:
        return SAME
    if found.skipping is None or before.skipping is None:
        return "mode has changed; all sites stop and start again for that"
    if found.skipping.version <= before.skipping.version:
        return f"its version is {found.skipping.version}, and {before.skipping.version} is in use; a newer file has a larger one"
    fixed = [
        name
        for name in sorted(before.content.keys() | found.content.keys())
        if not name.startswith(OF_MEMBERS) and before.content.get(name) != found.content.get(name)
    ]
    if fixed:
        return f"{', '.join(fixed)} cannot change while the sites run"
    if len(found.members) < len(before.members):
        return f"{before.members[len(found.members)].name} is missing; mark a member that goes with retired: true"
    for old, new in zip(before.members, found.members, strict=False):
        if (old.name, old.key) != (new.name, new.key):
            return f"{old.name} has another place or key; members stay where they are, and new ones come at the end"
        if old.retired and not new.retired:
            return f"{old.name} was retired and cannot come back under the same name"
    return ""
