"""The team of a site: the other members take the place of the processes of one program."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from docom.algorithms import Algorithm
from docom.sites.links import SiteLinks
from docom.sites.post import SitePost
from docom.sites.site import Site
from docom.team import Processes, Team
from docom.team.processes import HURRY
from docom.team.talk import Talk
from docom.transports import Transport
from docom.weights import Network

OWN = ("configuration device", "configuration threads")  # which each site chooses
# What changes with the members, and what decides the last bits only, which do not matter where sites skip each other.
OF_MEMBERS_NOW = ("configuration topology", "configuration weights", "graph", "network", "code", "torch")


class ApartTeam(Team):
    """One site that goes on without those that are away; see `docom.sites.links`."""

    shares_folder = False
    apart = True

    def __init__(self, site: Site, note: Callable[[str], None] = lambda text: None) -> None:
        super().__init__()
        skipping = site.federation.skipping
        assert skipping is not None
        self.site, self.links, self.note = site, SiteLinks(site, note), note
        self.stopping = self._rehearses = False
        self.rank, self.world, self.backend = site.agent, skipping.places, "sites"
        self.network = site.federation.network

    @property
    def leads(self) -> bool:
        """See `Team.leads`: every site writes its own files."""
        return True

    def agents(self, n: int) -> Sequence[int]:
        """See `Team.agents`."""
        return range(self.rank, self.rank + 1)

    def transport(self, network: Network, device: str | torch.device) -> Transport:
        """See `Team.transport`."""
        if torch.device(device).type != "cpu":
            raise ValueError("with mode: skip a site computes on the CPU; leave out --device, or use mode: wait")
        return self.links

    def agree(self, facts: dict[str, str], member: str = "rank") -> None:
        """See `Team.agree`: neighbours compare the facts when they greet each other."""
        self.links.protocol.facts = dict(self.links.protocol.facts) | {
            name: fact for name, fact in facts.items() if not name.startswith((*OWN, *OF_MEMBERS_NOW))
        }
        self.links.protocol.say_facts()

    def after_step(self, training: Steps, steps: float) -> bool:
        """See `Team.after_step`: take the model and the round of a neighbour that is far ahead; end if the site is retired."""
        ahead, self.links.ahead = self.links.ahead, None
        if ahead is not None and ahead.round > training.step:
            before = training.step
            catch_up(training, ahead.row, int(min(ahead.round + 1, steps)))
            name = self.site.federation.members[ahead.other].name
            self.links.events.round = training.step
            self.links.events.note("caught-up", name, model=True, from_round=before)
            self.note(f"took the model of {name} and goes on from round {training.step} instead of {before}")
        if self.links.retired:
            self.note("the members' file says that this site is retired")
        return self.links.retired

    def hurry(self) -> None:
        """See `Team.hurry`."""
        self.stopping = True
        self.links.leave_by = min(self.links.leave_by, time.monotonic() + HURRY)

    def traffic(self) -> dict[str, int]:
        """See `Team.traffic`: all bytes that this site has handed to the network."""
        return {"sent_bytes": self.links.bytes_on_network + self.carried.get("sent_bytes", 0)}

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]
        """See `Team.bytes_sent`."""
        return self.links.bytes_on_network

    def measures(self) -> dict[str, float]:
        """See `Team.measures`."""
        gap = self.links.neighbour_gap()
        return {} if gap is None else {"neighbour_gap": gap}

    def rehearse(self) -> None:
        """See `Team.rehearse`."""
        self._rehearses = True

    @property
    def continues(self) -> bool:
        """See `Team.continues`."""
        return self._rehearses

    def state(self) -> bytes:
        """See `Team.state`: what was got over each link."""
        return self.links.state()

    def resume(self, state: bytes) -> None:
        """See `Team.resume`."""
        self.links.restore(state)
        self._rehearses = False

    def account(self) -> dict[str, int | str]:
        """See `Team.account`."""
        return {"processes": self.world, "backend": self.backend}

    def close(self, text: str) -> None:
        """Close the connections at once, and tell the neighbours why."""
        self.links.close(text)

    def leave(self) -> None:
        """See `Team.leave`: neighbours that still work are answered."""
        self.links.finish()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`."""
        self.links.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class Steps(Protocol):
    """A run, or the agent of a training loop, between two steps."""

    algorithm: Algorithm
    state: Any
    step: int

    def jump(self, step: int) -> None:
        """Go on from a step that another agent has reached."""


def catch_up(training: Steps, row: Tensor, step: int) -> None:
    """Go on from another model in another step. What a method compares with its model moves with it; sums stay as they are."""
    jump = row - training.state.x
    for name in training.algorithm.models:
        rows = training.state.rows()[name]
        rows.add_(jump)
    training.state.x.copy_(row)
    training.jump(step)


def team_of(site: Site, note: Callable[[str], None] = lambda text: None) -> SiteTeam | ApartTeam:
    """The team of a site, by the mode of its members' file."""
    return SiteTeam(site, note) if site.federation.skipping is None else ApartTeam(site, note)


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

    def close(self, text: str) -> None:
        """Close the connections at once, and tell the neighbours why."""
        self.post.close(text)

    def leave(self) -> None:
        """See `Team.leave`: no site may go while another may still need its messages."""
        self.post.finish()

    def abandon(self, status: int) -> None:
        """See `Team.abandon`."""
        self.post.close()
        super().abandon(status)
