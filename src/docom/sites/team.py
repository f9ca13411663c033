"""The team of a site: the other members take the place of the processes of one program."""

from __future__ import annotations

import time
from collections.abc import Callable

from docom.sites.post import SitePost
from docom.sites.site import Site
from docom.team import Processes, Team
from docom.team.processes import HURRY
from docom.team.talk import Talk


class SiteTeam(Processes):
    """One site among the members of its federation. Each has its own files, and saves and stops by itself.

    site: which one. note: is told in a line what a person may want to know.
    """

    def __init__(self, site: Site, note: Callable[[str], None] = lambda text: None) -> None:
        Team.__init__(self)
        self.site = site
        self.post: SitePost = SitePost(site, note)
        self.rank, self.world, self.backend = self.post.rank, self.post.world, "sites"
        self.local_rank = self.restarts = self.n = self.steps = 0
        self.launch, self.board, self.framed, self.meetings, self.failing = "", None, None, None, False
        self.run = self.post.run
        self.talk = Talk(self.post, self.run)

    @property
    def leads(self) -> bool:
        """See `Team.leads`: every site writes its own files."""
        return True

    def meets(self, wanted: bool, always: bool) -> bool:
        """See `Team.meets`: a site saves and stops by itself."""
        return wanted or always

    def hurry(self) -> None:
        """See `Team.hurry`."""
        self.post.leave_by = min(self.post.leave_by, time.monotonic() + HURRY)

    def leave(self) -> None:
        """See `Team.leave`: no site may go while another may still need its messages."""
        self.post.finish()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`."""
        self.post.close()
        super().abandon(status)
