"""Lines that stand and carry nothing, neighbours and strangers that flood: what a site closes, and what goes on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from docom.sites import Site, accepted, allowance, journal
from docom.sites.allowance import AT_ONCE, RATE, SHUT_OUT, Allowance
from docom.sites.exchange import Exchange
from docom.sites.members_file import from_values, read
from docom.sites.post import SitePost
from launching import free_port
from sites import all_sites, federation
from test_sites_post import NAMES, exchange_along_links, expected, together

pytest.importorskip("zmq")
import zmq
from benchmarks.site_faults.networks import Relay

NEVER_ENDS = b"\x02" + (10**6).to_bytes(8, "big")  # the head of a ZMTP frame that is longer than all that follows


class Inserting(Relay):
    """A forwarder that puts the head of a long frame between two frames, once, so that the stream is out of step after it."""

    def __init__(self, to: int, to_the_site: bool) -> None:
        self.direction, self.armed = to_the_site, False
        super().__init__(to)

    def seen(self, data: bytes, to_the_site: bool) -> bytes:
        if not self.armed or to_the_site != self.direction:
            return data
        self.armed = False
        return NEVER_ENDS + data


@pytest.fixture
def posts() -> Iterator[list[SitePost]]:
    found: list[SitePost] = []
    yield found
    for post in found:
        post.close()


@pytest.mark.parametrize("to_the_site", [True, False])
def test_a_line_out_of_step_is_closed_and_dialled_again(
    tmp_path: Path, posts: list[SitePost], to_the_site: bool
) -> None:
    """By the site that opens the connection if that one hears nothing, else because the site that it reaches closes it."""
    port = free_port()
    relay = Inserting(port, to_the_site)
    path = federation(tmp_path, NAMES[:2], topology="complete", heartbeat=0.2, redial=1.0)
    values = path.read_text()
    path.write_text(values.replace(str(read(path).members[1].address), f"127.0.0.1:{relay.port}"))
    posts += [SitePost(Site(path, "a")), SitePost(Site(path, "b", listen=f"127.0.0.1:{port}"))]

    def all_rounds(rounds: range) -> list[Any]:
        return together([lambda post=post: exchange_along_links(post, rounds) for post in posts])

    assert all_rounds(range(5)) == [expected(post, range(5)) for post in posts]
    time.sleep(0.5)  # no message is under way: what comes next begins with a frame
    relay.armed = True
    time.sleep(0.5)  # signs of life
    assert not relay.armed
    assert all_rounds(range(5, 10)) == [expected(post, range(5, 10)) for post in posts]
    hears_nothing, hears = (posts[1], posts[0]) if to_the_site else posts
    assert hears_nothing.exchange.counts["out of step"] == 1
    assert hears.exchange.counts["out of step"] == 0
    assert all(post.exchange.counts["connections"] == 2 for post in posts)
    relay.listener.close()


def test_how_long_a_line_may_carry_nothing_is_a_setting(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete", heartbeat=1, redial=7.5)
    found = read(path)
    assert found.redial == 7.5
    assert found.content["redial"] == "7.5"
    with pytest.raises(ValueError, match=r"redial must be at least twice heartbeat, got 1\.9 and 1"):
        from_values(yaml.safe_load(path.read_text()) | {"redial": 1.9})


def test_an_allowance_is_used_up_and_comes_back() -> None:
    one = Allowance()
    assert [one.used(5.0) for _ in range(int(AT_ONCE) + 1)] == [False] * int(AT_ONCE) + [True]
    assert one.shut_out(5.0 + SHUT_OUT - 1e-3)
    assert not one.shut_out(5.0 + SHUT_OUT)
    slow = Allowance(at=5.0)
    assert not any(slow.used(5.0 + number / (0.9 * RATE)) for number in range(5000))
    fast = Allowance(at=5.0)
    assert any(fast.used(5.0 + number / (2 * RATE)) for number in range(5000))


def test_a_neighbour_that_floods_is_shut_out_for_a_while(tmp_path: Path) -> None:
    """Of frames that are refused, and of greetings; what is sent again after a lost connection does not count."""
    path = federation(tmp_path, NAMES[:2], topology="complete")
    notes: list[str] = []
    happened: list[tuple[str, str]] = []
    for hostile in ("garbage", "greetings", "replayed"):
        a = Exchange(read(path), 0, 1, {}, notes.append, happened=lambda *event: happened.append(event))
        b = Exchange(read(path), 1, 2, {}, lambda text: None)
        b.came(0, a.connected(1), 0.0)
        greeting = b.connected(0)
        a.came(1, greeting, 0.0)
        sent: list[bytes] = []
        b.peers[0].out.add(b"a message")
        b.send_due(lambda other, data, sent=sent: not sent.append(data), 0.0)
        frame = {"garbage": b"x" * 90, "greetings": greeting, "replayed": sent[-1]}[hostile]
        for _ in range(int(AT_ONCE) + 2):
            a.came(1, frame, 1.0)
        if hostile == "replayed":
            assert not a.floods(1)
            continue
        assert a.floods(1)
        assert not a.floods(1), "said once"
        assert a.shut_out_now(1, 2.0)
        assert not a.came(1, greeting, 2.0)
        assert a.counts["of one that floods"]
        assert a.came(1, greeting, 1.0 + SHUT_OUT), "admitted again"
    assert happened.count(("flooding", "b")) == 2
    assert sum("b floods this site" in note for note in notes) == 2


def test_a_flooding_member_does_not_keep_others_from_their_messages(
    tmp_path: Path, posts: list[SitePost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """c has gone bad, and sends garbage with its key."""
    monkeypatch.setattr(allowance, "AT_ONCE", 50.0)
    path = federation(tmp_path, NAMES[:3], links=[["b", "a"], ["c", "a"]], reachable=("a",))
    a, b, bad = all_sites(path, NAMES[:3])
    posts += [SitePost(a), SitePost(b)]
    posts[0].exchange.allowances[2] = Allowance(left=50.0, at=time.monotonic())
    posts[0].open()
    context = zmq.Context()

    def connect() -> Any:
        line = context.socket(zmq.DEALER)
        line.setsockopt(zmq.LINGER, 0)
        line.curve_publickey, line.curve_secretkey = bad.keys.public.encode(), bad.keys.secret.encode()
        line.curve_serverkey = a.keys.public.encode()
        line.connect(a.me.address.url)
        return line

    line = connect()
    for _ in range(60):
        line.send(b"garbage" * 20)

    def wait_for(what: Any) -> None:
        with posts[0].connections.lock:
            assert posts[0].connections.lock.wait_for(what, 20)

    wait_for(lambda: any(event["kind"] == "flooding" for event in journal.read(a.folder)))
    connect()
    wait_for(lambda: posts[0].connections.refused_keys > 0)
    found = together(
        [lambda one=one, other=other: bytes(one.trade({other: b"x"}, {other: 1}).wait()[other])
         for one, other in ((posts[0], 1), (posts[1], 0))]
    )  # fmt: skip
    assert found == [b"x", b"x"]
    wait_for(lambda: "floods" in json.loads((a.folder / "now.json").read_text())["links"]["c"]["says"])
    context.destroy(linger=0)


def test_connections_that_prove_no_key_keep_nobody_out(tmp_path: Path, posts: list[SitePost]) -> None:
    """A host holds as many as it can; a member on another one gets through, and the site does not stop listening."""
    path = federation(tmp_path, NAMES[:2], reachable=("a",), topology="complete")
    a, b = all_sites(path, NAMES[:2])
    posts.append(SitePost(a))
    posts[0].open()
    with ExitStack() as held:
        for _ in range(4 * accepted.HALF_OPEN):
            with suppress(OSError):
                held.enter_context(
                    socket.create_connection(("127.0.0.1", a.me.address.port), 5, source_address=("127.0.0.2", 0))
                )
        posts.append(SitePost(b))
        found = together(
            [lambda one=one, other=other: bytes(one.trade({other: b"x"}, {other: 1}).wait()[other])
             for one, other in ((posts[0], 1), (posts[1], 0))]
        )  # fmt: skip
    assert found == [b"x", b"x"]
    assert posts[0].exchange.counts["pauses"] == 0


def test_a_line_is_closed_only_if_it_is_still_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dialled = socket.create_connection(("127.0.0.1", port))
        mine, _ = server.accept()
        line = accepted.Line.at(mine.fileno(), port)
        assert line is not None
        assert accepted.Line.at(mine.fileno(), port + 1) is None
        assert accepted.Line.at(10**6, port) is None
        other = accepted.Line(line.fd, ("127.0.0.1", 1))
        other.close()
        dialled.sendall(b"stands")
        assert mine.recv(6) == b"stands"
        line.close()
        assert dialled.recv(1) == b""
        dialled.close()
        mine.close()
        line.close()  # its number belongs to nothing any more
