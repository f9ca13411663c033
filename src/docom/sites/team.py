"""The team of a site: the other members take the place of the processes of one program."""

from __future__ import annotations

import time
from collections.abc import Callable

from docom.sites.post import SitePost
from docom.sites.site import Site
from docom.team import Processes, Team
from docom.team.processes import HURRY
from docom.team.talk import Talk

OWN = ("configuration device", "configuration threads")  # which each site chooses


class SiteTeam(Processes):
    """One site among the members of its federation. Each has its own files, and saves and stops by itself.

    site: which one. note: is told in a line what a person may want to know.
    """

    def __init__(self, site: Site, note: Callable[[str], None] = lambda text: None) -> None:
        Team.__init__(self)
        self.site = site
        self.stopping = False  # its owner has asked it to stop
        self.post: SitePost = SitePost(site, note)
        self.rank, self.world, self.backend = self.post.rank, self.post.world, "sites"
        self.local_rank = self.restarts = self.n = self.steps = 0
        self.launch, self.board, self.framed, self.meetings, self.failing = "", None, None, None, False
        self.run = self.post.run
        self.talk = Talk(self.post, self.run)
        self.network = site.federation.network

    shares_folder = False

    @property
    def leads(self) -> bool:
        """See `Team.leads`: every site writes its own files."""
        return True

    def words(self, text: str) -> list[str]:
        """See `Team.words`; in a rehearsal all members say the same."""
        return [text] * self.world if self.post.rehearses else super().words(text)

    def words_in_folder(self, text: str) -> list[str]:
        """See `Team.words_in_folder`."""
        return [text]

    def agree(self, facts: dict[str, str], member: str = "rank") -> None:
        """See `Team.agree`; a site that continues from a checkpoint did so when it began."""
        if not self.post.rehearses:
            super().agree({name: fact for name, fact in facts.items() if name not in OWN}, "site")

    def rehearse(self) -> None:
        """See `Team.rehearse`."""
        self.post.rehearses = True

    def state(self) -> bytes:
        """See `Team.state`: the streams of messages to and from all members."""
        return self.talk.turn.to_bytes(8, "little") + self.post.state()

    def saved(self) -> None:
        """See `Team.saved`."""
        self.post.saved()

    def resume(self, state: bytes) -> None:
        """See `Team.resume`."""
        self.post.restore(state[8:])
        self.talk.turn = int.from_bytes(state[:8], "little")

    def meets(self, wanted: bool, always: bool) -> bool:
        """See `Team.meets`: a site saves and stops by itself."""
        return wanted or always

    def hurry(self) -> None:
        """See `Team.hurry`."""
        self.stopping = True
        self.post.leave_by = min(self.post.leave_by, time.monotonic() + HURRY)

    @property
    def continues(self) -> bool:
        """See `Team.continues`."""
        return self.post.rehearses

    def leave(self) -> None:
        """See `Team.leave`: no site may go while another may still need its messages."""
        self.post.finish()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`."""
        self.post.close()
        super().abandon(status)
