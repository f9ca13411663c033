"""The transport of a site that goes on without those that are away: pairs of messages over its connections.

`docom.transports.linkwise` says what an exchange is, `docom.sites.skipping` how its messages travel, `docom.sites.attendance` for
whom the site waits. Here they meet the clock.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable

import torch
from torch import Tensor

from docom.sites.connections import Connections
from docom.sites.journal import Events
from docom.sites.post import FACTS, new_session
from docom.sites.presence import Presence
from docom.sites.rereading import Rereading
from docom.sites.site import Site
from docom.sites.skipping import Skipping
from docom.transports import BadLinkMessage, Completed, ExchangeError, Header, LinkEnd, LinkTransport
from docom.transports.linkwise import HEADER_BYTES

LOOK = 0.25  # seconds between looks at the clock while waiting


class SiteLinks(LinkTransport):
    """The links of one site.

    retired: whether a members' file says that this site takes no part any more.
    """

    def __init__(self, site: Site, note: Callable[[str], None]) -> None:
        super().__init__()
        skipping = site.federation.skipping
        assert skipping is not None
        self.site, self.note = site, note
        self.agents = self.senders = torch.tensor([site.agent])
        self.behind, self.clip, self.gathering = skipping.behind, skipping.clip, skipping.gather
        self.events = Events(site.folder)
        self.protocol = Skipping(
            site.federation, site.agent, new_session(site.folder), dict(FACTS), note, happened=self._happened
        )
        self.connections: Connections | None = None
        self.leave_by = float("inf")
        self.retired = self.closed = self._done = self._gathered = self._gave_up = False
        self._pairs: dict[tuple[int, int], LinkEnd] = {}
        self._presence = Presence(self.protocol, self.events, note)
        self._gone: list[int] = []  # former neighbours, in the order in which they ceased to be
        self._told: dict[int, int] = {}  # how many of them each variable knows
        self._cut: set[int] = set()
        self._opened = 0.0

    # Connections

    def open(self) -> Connections:
        """Open the connections, if they are not open."""
        if self.connections is None:
            self.events.start(session=self.protocol.session, agent=self.site.agent, mode="skip")
            chores = (
                None
                if self.site.path is None
                else Rereading(self.site.path, self.site, self._renewed, self._not_renewed)
            )
            self.connections = Connections(self.site, self.protocol, chores)
            atexit.register(self.connections.close)
            self._opened = time.monotonic()
        return self.connections

    def close(self, text: str = "", why: str = "") -> None:
        """Close the connections at once. text: what the neighbours are told."""
        if self.connections is not None and not self.closed:
            self.closed = True
            self.connections.close(text)
            self.events.totals()
            self.events.note("ended", why=why or text or "closed")

    @property
    def bytes_on_network(self) -> int:
        """All bytes handed to the network, with headers, acknowledgements and encryption."""
        return 0 if self.connections is None else self.connections.bytes_sent

    def _happened(self, kind: str, what: str) -> None:
        if kind == "members":
            self.events.note(kind, digest=what)
        elif kind != "met":
            self.events.note(kind, what)

    # Exchanges

    def begin(self, variable: int, round: int, limit: float, write: Callable[[int, Header], bytes]) -> None:
        """See `LinkTransport.begin`."""
        found = self.open()
        self.protocol.round = self.events.round = round
        self.events.bytes = self.bytes_on_network
        if not self._gathered:
            self._gather(found)
        with found.lock:
            done = self.protocol.finished if self._done else set()  # two that have finished have nothing to say
            epochs = {other: self.protocol.epoch(other) for other in sorted(self.protocol.neighbours - done)}
            weight = self.protocol.federation.weight(self.site.agent)
        for other, epoch in epochs.items():
            pair = self._pairs.setdefault((other, variable), LinkEnd(variable, self.behind))
            if epoch is None:
                continue
            pair.enter(epoch)
            if pair.mine is None:
                header = pair.begin(round, weight, limit)
                data = header.to_bytes() + write(other, header)
                if len(data) > self.protocol.limit:
                    raise ValueError(
                        f"a message of {len(data) / 1e6:.0f} MB does not fit into the log of messages; raise log in the "
                        "members' file"
                    )
                with found.lock:
                    if self.protocol.epoch(other) == epoch:  # else it is void, and the next one opens another epoch
                        self.protocol.peers[other].out.add(data)
                        self.protocol.traffic.made(variable, round, len(data))
                        found.wake()

    def complete(self, variable: int, round: int) -> list[Completed]:
        """See `LinkTransport.complete`."""
        found = self.open()
        waiting = {
            other: pair
            for (other, number), pair in sorted(self._pairs.items())
            if number == variable and pair.mine is not None
        }
        with found.lock:
            done = self._arrived(waiting, variable, round)
            must = self._to_wait_for(waiting)
            if must:
                done += self._wait(found, waiting, must, variable, round)
            if not done and self._alone() and not self._may_begin(variable):
                done += self._wait_for_anybody(found, waiting, variable, round)
            self._gave_up = self._gave_up and not done
        return done

    def _wait(
        self, found: Connections, waiting: dict[int, LinkEnd], must: list[int], variable: int, round: int
    ) -> list[Completed]:
        """Wait for those that are not away; with the lock held."""
        done: list[Completed] = []
        patience = self.site.federation.patience
        until = time.monotonic() + patience
        with self.events.waiting(self.protocol.name(must[0])) as wait:
            while must and time.monotonic() < min(until, self.leave_by):
                found.lock.wait(LOOK)
                self._raise_failure(found)
                wait.goes_on()
                done += self._arrived(waiting, variable, round)
                must = self._to_wait_for(waiting)
        for other in must if time.monotonic() < self.leave_by else ():
            self._presence.skip(other, round, patience)
        return done

    def _to_wait_for(self, waiting: dict[int, LinkEnd]) -> list[int]:
        return [] if self._done or self.retired else self._presence.waited_for(waiting)

    def _alone(self) -> bool:
        """Whether all neighbours that still work are away."""
        return not (self._done or self.retired or self._gave_up) and self._presence.all_away()

    def _wait_for_anybody(
        self, found: Connections, waiting: dict[int, LinkEnd], variable: int, round: int
    ) -> list[Completed]:
        """A site that reaches nobody does not run ahead of the others, which would later take its model for the newest one."""
        done: list[Completed] = []
        until = time.monotonic() + self.gathering
        self.note("reaches no neighbour, and waits for one")
        with self.events.waiting(self.protocol.name(min(self.protocol.neighbours))) as wait:
            while not done and self._alone() and not self._may_begin(variable):
                if time.monotonic() > min(until, self.leave_by):
                    self._gave_up = True
                    break
                found.lock.wait(LOOK)
                self._raise_failure(found)
                wait.goes_on()
                done += self._arrived(waiting, variable, round)
        return done

    def _may_begin(self, variable: int) -> bool:
        """Whether there is a neighbour with which the next exchange can begin, such as one that has just started."""
        for other in self.protocol.neighbours:
            epoch, end = self.protocol.epoch(other), self._pairs.get((other, variable))
            if epoch is not None and (end is None or end.mine is None or end.epoch != epoch):
                return True
        return False

    def _arrived(self, waiting: dict[int, LinkEnd], variable: int, round: int) -> list[Completed]:
        """What has come; those are taken out of ``waiting``, with those whose exchange is void."""
        done = []
        for other, pair in list(waiting.items()):
            epoch = self.protocol.epoch(other)
            if epoch is None or epoch != pair.epoch or pair.mine is None:
                del waiting[other]
                continue
            try:
                came = self.protocol.message(other, variable)
                if came is None:
                    continue
                asked = pair.mine.round
                done.append(pair.complete(other, came[0], memoryview(came[1])[HEADER_BYTES:]))
            except BadLinkMessage as error:
                self.shut_out(other, str(error))
                continue
            del waiting[other]
            self._answered(other, round, asked, came[0].round)
        return done

    def _answered(self, other: int, round: int, asked: int, theirs: int) -> None:
        peer = self.protocol.peers[other]
        if peer.ask_again:  # there was no room for what came
            peer.status_at = 0.0
            self.open().wake()
        self.protocol.rounds[other] = theirs
        self._presence.answered(other, round, asked, tell=not self._done)

    def _gather(self, found: Connections) -> None:
        """Wait until all neighbours have been met, or one that is at work already, before the first exchange."""
        self._gathered = True
        until = time.monotonic() + self.gathering
        with found.lock:
            missing = self._not_met()
            if not missing:
                return
            with self.events.waiting(self.protocol.name(missing[0])) as wait:
                while (
                    missing and time.monotonic() < min(until, self.leave_by) and not any(self.protocol.rounds.values())
                ):
                    found.lock.wait(LOOK)
                    self._raise_failure(found)
                    wait.goes_on()
                    missing = self._not_met()
        for other in missing:
            self._presence.forget([other])
            self._presence.skip_unmet(other)

    def _not_met(self) -> list[int]:
        return [other for other in sorted(self.protocol.neighbours) if self.protocol.peers[other].session == 0]

    def _raise_failure(self, found: Connections) -> None:
        if found.failure is not None:
            raise ExchangeError([], f"the connections of this site failed: {found.failure!r}") from found.failure

    # Members

    def ended(self, variable: int) -> list[int]:
        """See `LinkTransport.ended`."""
        with self.open().lock:
            news = self._gone[self._told.get(variable, 0) :]
            self._told[variable] = len(self._gone)
        return news

    def shut_out(self, other: int, why: str) -> None:
        """See `LinkTransport.shut_out`."""
        with self.open().lock:
            self.protocol.shut_out(other, f"sends what no site sends: {why}")
        self.events.note("shut-out", self.protocol.name(other), why=why)
        self.note(f"uses nothing of {self.protocol.name(other)} until it starts again: {why}")

    def clipped(self, other: int) -> None:
        """See `LinkTransport.clipped`."""
        if other not in self._cut:
            self._cut.add(other)
            self.events.note("clipped", self.protocol.name(other))
            self.note(f"{self.protocol.name(other)} has a model far from the others; its differences are cut")

    def _renewed(self, found: Connections, new: set[int], gone: set[int]) -> None:
        """Another members' file is in use; called by the thread of the connections."""
        with found.lock:
            federation = self.protocol.federation
            self._gone += sorted(gone)
            self._presence.forget(new | gone)
            self.retired = federation.members[self.site.agent].retired
            found.lock.notify_all()

    def _not_renewed(self, why: str) -> None:
        self.events.note("refused", why=why)
        self.note(f"the members' file has changed and cannot be used: {why}; the one before stays in use")

    # The end

    def finish(self) -> None:
        """Answer neighbours that still work, until all have finished or are silent for longer than the patience."""
        found = self.connections
        if found is None:
            return
        self._done = True
        self.events.last_round()
        with found.lock:
            self.protocol.finished.add(self.site.agent)
            for peer in self.protocol.peers.values():
                peer.status_at = 0.0
            found.wake()
        with self.events.waiting(self._last()) as wait:
            while found.failure is None and time.monotonic() < self.leave_by and self._needed():
                for channel in self.channels:
                    channel.serve()
                with found.lock:
                    found.lock.wait(LOOK)
                wait.goes_on()
        self.close(why="finished")

    def _last(self) -> str:
        """A neighbour that may still need something."""
        rest = self.protocol.neighbours - self.protocol.finished
        return self.protocol.name(min(rest, default=self.site.agent))

    def _needed(self) -> bool:
        with self.open().lock:
            now, patience = time.monotonic(), self.site.federation.patience
            return any(
                peer.heard is not None and now - peer.heard <= patience
                for other, peer in self.protocol.peers.items()
                if other not in self.protocol.finished
            )

    # Checkpoints

    def state(self) -> bytes:
        """What this site has got over each link, by variable and the name of the member."""
        from safetensors.torch import save

        names = self.protocol.federation.names
        return bytes(save({f"{variable}.{names[other]}": row for (variable, other), row in self.given.items()}))

    def restore(self, state: bytes) -> None:
        """Continue from a `state`; members that are no more are left out.

        Raises:
            ValueError: it is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        names, given = self.protocol.federation.names, dict[tuple[int, int], Tensor]()
        try:
            for key, row in load(state).items():
                variable, _, name = key.partition(".")
                if name in names:
                    given[int(variable), names.index(name)] = row
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"what is kept of the links with the checkpoint cannot be used: {error}") from None
        self.given = given
        self.gathering = min(self.gathering, self.site.federation.patience)  # the others are at work already
