"""Buffers between sites over real sockets: what arrives, what survives restarts, who is admitted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from docom.sites import Site, make_keys
from docom.sites.exchange import Exchange
from docom.sites.members_file import read
from docom.sites.post import Away, SitePost
from docom.transports import RanksLost
from sites import all_sites, federation

zmq = pytest.importorskip("zmq")
NAMES = ("a", "b", "c", "d")


@pytest.fixture
def posts() -> Iterator[list[SitePost]]:
    """Filled by a test, closed after it."""
    found: list[SitePost] = []
    yield found
    for post in found:
        post.close()


def together(works: list[Callable[[], Any]], longest: float = 60) -> list[Any]:
    """What each returns when all run at the same time; the first error of any."""
    answers: dict[int, Any] = {}

    def run(number: int) -> None:
        try:
            answers[number] = works[number]()
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(longest)
    assert len(answers) == len(works), "some did not end"
    return [answers[number] for number in range(len(works))]


def exchange_along_links(post: SitePost, rounds: range) -> list[dict[int, bytes]]:
    """What comes from each neighbour when every site sends its name and the number of the round."""
    near = post.site.neighbours
    found = []
    for number in rounds:
        mine = f"{post.site.name} {number:06d}".encode()
        came = post.trade(dict.fromkeys(near, mine), dict.fromkeys(near, len(mine)), True).wait()
        found.append({other: bytes(data) for other, data in came.items()})
    return found


def expected(post: SitePost, rounds: range) -> list[dict[int, bytes]]:
    return [{other: f"{NAMES[other]} {number:06d}".encode() for other in post.site.neighbours} for number in rounds]


def test_messages_travel_along_links_and_to_everybody(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES, reachable=("a", "c"))
    posts += [SitePost(site) for site in all_sites(path, NAMES)]

    def work(post: SitePost) -> tuple[Any, ...]:
        along = exchange_along_links(post, range(5))
        values = torch.tensor([1.5, -2.0]) * (post.rank + 1)
        post.add_up(values)
        first = torch.full((3,), float(post.rank))
        post.start_from_first(first)
        opposite = (post.rank + 2) % 4  # in a ring of four: no link
        large = bytes([post.rank]) * 300_000
        came = post.trade({opposite: large}, {opposite: len(large)}).wait()[opposite]
        post.finish()
        return along, values.tolist(), first.tolist(), bytes(came) == bytes([opposite]) * 300_000

    for post, (along, values, first, large) in zip(posts, together([lambda p=p: work(p) for p in posts]), strict=True):
        assert along == expected(post, range(5))
        assert values == [15.0, -20.0]
        assert first == [0.0] * 3
        assert large
        assert post.exchange.finished == {0, 1, 2, 3}
        assert post.exchange.counts["pieces"] >= 5 * 2
        refused = ("damaged", "of another run", "of a wrong sender or receiver", "other history", "disagreements")
        assert not any(post.exchange.counts[why] for why in refused)


def test_a_trade_tells_when_everything_is_there(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    posts += [SitePost(site) for site in all_sites(path, NAMES[:2])]
    first, second = posts
    early = first.trade({1: b"early"}, {1: 4})
    assert not early.ready(), "nothing was sent yet"
    assert bytes(second.trade({0: b"late"}, {0: 5}).wait()[0]) == b"early"
    until = time.monotonic() + 60
    while not early.ready():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert early.ready(), "asking takes nothing"
    assert bytes(early.wait()[1]) == b"late"


def test_only_sites_that_are_reached_listen_and_only_where_asked(tmp_path: Path, posts: list[SitePost]) -> None:
    import psutil

    path = federation(tmp_path, NAMES[:3], topology="star")
    sites = all_sites(path, NAMES[:3])
    posts += [SitePost(site) for site in sites]
    before = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}
    for post in posts:
        post.open()
    after = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}
    asked = {(site.listens.host, site.listens.port) for site in sites if site.listens is not None}
    assert after - before == asked
    assert [site.name for site in sites if site.listens is None] == ["a"], "it opens all of its connections itself"


@pytest.mark.parametrize("killed", ["a", "b"])
def test_a_site_that_is_killed_continues_from_its_checkpoint(
    tmp_path: Path, posts: list[SitePost], killed: str
) -> None:
    """Both ends take every message exactly once, whether the killed site had opened the connection or not."""
    names = NAMES[:2]
    path = federation(tmp_path, names, topology="complete")
    other = "b" if killed == "a" else "a"
    first, second = SitePost(Site(path, killed)), SitePost(Site(path, other))
    posts += [first, second]
    states: list[bytes] = []
    enough = threading.Event()

    def victim() -> list[Any]:
        found = exchange_along_links(first, range(10))
        states.append(first.state())
        first.saved()
        found += exchange_along_links(first, range(10, 14))
        first.connections.close(at_once=True)  # as if the machine had lost power
        return found

    def again() -> list[Any]:
        enough.wait(30)
        reborn = SitePost(Site(path, killed))
        posts.append(reborn)
        reborn.restore(states[0])
        found = exchange_along_links(reborn, range(10, 30))
        reborn.finish()
        return found

    def survivor() -> list[Any]:
        found = exchange_along_links(second, range(30))
        second.finish()
        return found

    def both() -> list[Any]:
        found = victim()
        enough.set()
        return [found, again()]

    (before, after), undisturbed = together([both, survivor])
    assert before == expected(first, range(14))
    assert after == expected(first, range(10, 30))
    assert undisturbed == expected(second, range(30))


def test_a_restarted_site_that_computes_something_else_is_told(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    first, second = (SitePost(site) for site in all_sites(path, NAMES[:2]))
    posts += [first, second]
    together([lambda: exchange_along_links(first, range(3)), lambda: exchange_along_links(second, range(3))])
    first.close()
    reborn = SitePost(Site(path, "a"))
    posts.append(reborn)
    reborn.open()
    with second.connections.lock:
        assert second.connections.lock.wait_for(lambda: second.exchange.peers[0].session == reborn.exchange.session, 20)
    with reborn.connections.lock:
        assert reborn.connections.lock.wait_for(lambda: 1 in reborn.exchange.up, 20)
    reborn.trade({1: b"other than before"}, {})
    reborn.trade({1: b"other than before"}, {})
    with pytest.raises(Away, match="bit for bit"):
        reborn.trade({1: b"other than before"}, {})


def test_sites_with_different_files_do_not_start(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("patience: 30", "patience: 31"))
    posts += [SitePost(Site(path, "a")), SitePost(Site(other, "b"))]
    answers = together([lambda post=post: exchange_along_links(post, range(1)) for post in posts])
    assert all(isinstance(answer, RanksLost) for answer in answers)
    assert "patience: 31 at b, 30 here" in str(answers[0])
    assert "patience: 30 at a, 31 here" in str(answers[1])


def test_a_silent_member_is_given_up_after_the_patience(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete", patience=0.5, heartbeat=0.2)
    post = SitePost(Site(path, "a"))
    posts.append(post)
    with pytest.raises(Away, match=r"b has been silent for \d+ s"):
        exchange_along_links(post, range(1))


def test_a_key_that_is_not_listed_is_not_admitted(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    listens, opens = sorted(all_sites(path, NAMES[:2]), key=lambda site: site.listens is None)
    posts.append(SitePost(listens))
    posts[0].open()
    make_keys("x", tmp_path / "other")
    opens.keys = type(opens.keys)(*(part.decode() for part in zmq.curve_keypair()))
    notes: list[str] = []
    posts.append(SitePost(opens, notes.append))
    found = posts[1].open()
    with found.lock:
        assert found.lock.wait_for(lambda: any("does not admit" in note for note in notes), 20)
    assert posts[0].connections.refused_keys >= 1
    assert not posts[0].exchange.counts["frames"]


def test_a_server_that_does_not_prove_its_key_learns_nothing(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    listens, opens = sorted(all_sites(path, NAMES[:2]), key=lambda site: site.listens is None)
    listens.keys = type(listens.keys)(*(part.decode() for part in zmq.curve_keypair()))
    notes: list[str] = []
    posts += [SitePost(listens), SitePost(opens, notes.append)]
    for post in posts:
        post.open()
    with posts[1].connections.lock:
        assert posts[1].connections.lock.wait_for(lambda: any("does not prove" in note for note in notes), 20)
    assert not posts[0].exchange.counts["frames"]
    assert not posts[1].exchange.counts["frames"]


def test_sessions_grow_even_if_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(federation(tmp_path, NAMES[:2], topology="complete"), "a")
    first = SitePost(site).exchange.session
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert SitePost(site).exchange.session == first + 1


def test_damaged_states_are_refused(tmp_path: Path, posts: list[SitePost]) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    post = SitePost(Site(path, "a"))
    posts.append(post)
    state = post.state()
    for wrong in (b"", state[:-3], state.replace(b'"end": 0', b'"end": x'), b"\xff" * 100):
        fresh = SitePost(Site(path, "a"))
        with pytest.raises(ValueError, match="cannot be used"):
            fresh.restore(wrong)


def test_that_a_site_needs_nothing_any_more_is_told_though_messages_go_on(tmp_path: Path) -> None:
    """Every piece tells how far the other stream has come, and so puts off the next status."""
    path = federation(tmp_path, NAMES[:2], topology="complete", heartbeat=10)
    a, b = (Exchange(read(path), me, 1 + me, {}, lambda text: None) for me in range(2))
    a.came(1, b.connected(0), 0.0)
    b.came(0, a.connected(1), 0.0)
    now = 1.0
    for number in range(5):
        if number == 3:
            a.finished.add(0)
        a.peers[1].out.add(b"more")
        a.send_due(lambda other, data, now=now: b.came(0, data, now) or True, now)
        now += 0.1
    assert b.finished == {0}
    assert b.peers[0].inbox.messages == 5
