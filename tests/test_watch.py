"""The watch page's content: what lanes, curves and links say is what the files of the sites say; who may read it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from docom.cli.app import app
from docom.records import as_line
from docom.sites import journal, now
from docom.sites.post import SitePost
from docom.watch import find, listen, look, render
from docom.watch.lanes import BINS, Span, bins, own_spans, seen_spans, sums
from docom.watch.picture import draw
from docom.watch.words import TEXTS, news
from launching import start
from sites import all_sites, federation
from test_sites_post import exchange_along_links, together

T0 = 1_700_000_000.0


def event(time: float, kind: str, peer: str | None = None, round: int = 0, **more: Any) -> dict[str, Any]:
    return {"time": T0 + time, "round": round, "kind": kind, "peer": peer, **more}


RUN = [
    event(0, "started", session=1, agent=0, mode="wait"),
    event(1, "connected", "bern"),
    event(10, "waiting", "bern", 4),
    event(14, "computing", round=4),
    event(20, "totals", computing=14.0, waiting=6.0, bytes=1000, round=8),
    event(25, "lost", "bern", 9),
    event(25, "waiting", "bern", 9),
    event(30, "totals", computing=19.0, waiting=11.0, bytes=1500, round=9),
    event(60, "started", session=2, agent=0, mode="wait"),
    event(61, "connected", "bern", 9),
    event(80, "totals", computing=20.0, waiting=0.0, bytes=700, round=20),
    event(80, "ended", why="finished", round=20),
]


def write(folder: Path, name: str, lines: list[dict[str, Any]], **state: Any) -> Path:
    """The files of a site."""
    place = folder / name
    place.mkdir(parents=True)
    (place / journal.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    link = {"up": True, "latency": 0.012, "sent": 1000, "received": 2000, "rate_up": 8e5, "rate_down": 4e5, "again": 3,
            "waiting": 500, "ended": False, "says": "", "heard": 0.1, "connections": 2, "arrived": 5}  # fmt: skip
    content = {"time": lines[-1]["time"], "run": "hearts", "members": ["basel", "bern", "chur"], "edges": [[0, 1], [1, 2]],
               "name": name, "round": 20, "links": {"bern" if name == "basel" else "basel": link},
               "sends": [{"variable": 0, "bytes": 80}, {"variable": 1, "bytes": 40}], "last": 0} | state  # fmt: skip
    (place / now.FILE).write_text(json.dumps(content))
    return place


def records(folder: Path, values: dict[int, float]) -> None:
    lines = [
        as_line({"step": step, "loss_worst": value, "consensus_gap": value / 10}) for step, value in values.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))


def test_lanes_hold_the_seconds_of_the_events() -> None:
    spans = own_spans(RUN, T0 + 80, T0 + 80)
    found = sums(spans)
    # Until 20 there are 6 seconds of waiting, 4 of them in a line of their own; from 20 to 30 there are 5, all in a line.
    assert found == pytest.approx({"computing": 14 + 5 + 20, "waiting": 6 + 5, "away": 30})
    shown = bins(spans, T0, T0 + 80)
    for kind, seconds in found.items():
        assert sum(shown[kind]) * 80 / BINS == pytest.approx(seconds, abs=0.05)
    assert [sum(shown[kind][place] for kind in shown) for place in range(BINS)] == pytest.approx(
        [1.0] * BINS, abs=0.005
    )


def test_a_site_that_was_killed_is_away_until_it_starts_again() -> None:
    killed = own_spans(RUN[:8], T0 + 31, T0 + 50)
    assert sums(killed)["away"] == pytest.approx(19)
    assert own_spans(RUN, T0 + 80, T0 + 500) == own_spans(RUN, T0 + 80, T0 + 80), "one that has finished is not away"
    assert Span(T0 + 30, T0 + 60, "away") in own_spans(RUN, T0 + 80, T0 + 80)


def test_what_a_site_knows_of_its_neighbour() -> None:
    lines = [*RUN[:8], event(26, "skipped", "bern", 9, why="silent"), event(28, "connected", "bern"),
             event(29, "back", "bern", 12), event(29.5, "lost", "chur")]  # fmt: skip
    lines.sort(key=lambda line: line["time"])
    assert sums(seen_spans(lines, "bern", T0 + 40)) == pytest.approx({"here": 24 + 11, "away": 1, "left out": 3})
    assert seen_spans(lines, "arosa", T0 + 40) == []


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20), st.floats(0, 1)), max_size=8), st.floats(1, 100))
@settings(max_examples=50, deadline=None)
def test_bins_lose_no_time(parts: list[tuple[float, float, float]], length: float) -> None:
    spans = [Span(T0 + a, T0 + a + b, "computing", share) for a, b, share in parts]
    inside = sum(max(0.0, min(s.end, T0 + length) - max(s.begin, T0)) for s in spans)
    shown = bins(spans, T0, T0 + length)
    assert sum(map(sum, shown.values())) * length / BINS == pytest.approx(inside, abs=0.002 * length * (1 + len(spans)))


def test_the_view_of_two_sites_and_of_one(tmp_path: Path) -> None:
    basel, bern = write(tmp_path, "basel", RUN), write(tmp_path, "bern", RUN)
    for place in (basel, bern):
        records(place, {0: 2.0, 10: 1.0, 20: 0.5})
    state = look(find(tmp_path), T0 + 1000)
    assert (state["run"], state["live"], state["seen"]) == ("hearts", False, ["basel", "bern"])
    assert [(site["name"], site["own"]) for site in state["sites"]] == [
        ("basel", True),
        ("bern", True),
        ("chur", False),
    ]
    (curve,) = state["curves"]["loss"]
    assert (curve["sites"], curve["step"], curve["y"]) == (["basel", "bern"], [0, 10, 20], [2.0, 1.0, 0.5])
    assert curve["time"] == sorted(curve["time"])
    link = state["links"][0]
    assert (link["a"], link["b"], link["latency"], link["lost"], link["again"]) == ("basel", "bern", 0.012, 1, 6)
    assert (link["there"]["bytes"], link["back"]["bytes"]) == (1000, 1000), "of a direction the sender's count"
    assert [one["known"] for one in state["links"]] == [True, True]
    assert state["next"] == [], "it has ended"

    alone = look(find(basel), T0 + 1000)
    seen = {site["name"]: site for site in alone["sites"]}
    assert (seen["bern"]["own"], seen["bern"]["seen_by"]) == (False, "basel")
    assert seen["chur"]["status"].startswith("no link to it")
    assert alone["links"][0]["back"]["bytes"] == 2000, "what basel has counted"


def test_sites_that_measure_something_else_have_a_curve_of_their_own(tmp_path: Path) -> None:
    records(write(tmp_path, "basel", RUN), {0: 2.0, 10: 1.0})
    records(write(tmp_path, "bern", RUN), {0: 2.0, 10: 1.5})
    assert [curve["sites"] for curve in look(find(tmp_path), T0)["curves"]["loss"]] == [["basel"], ["bern"]]


def test_rounds_that_were_done_again_count_the_second_time(tmp_path: Path) -> None:
    lines = [
        event(0, "started"), event(10, "totals", round=100, computing=1.0, waiting=0.0), event(20, "lost", "bern", 200),
        event(50, "started"), event(52, "connected", "bern"), event(60, "totals", round=150, computing=1.0, waiting=0.0),
        event(80, "caught-up", "bern", 400), event(90, "ended", why="finished", round=500),
    ]  # fmt: skip
    records(write(tmp_path, "basel", lines), {0: 2.0, 100: 1.0, 150: 0.9, 200: 0.8, 450: 0.5, 500: 0.4})
    (curve,) = look(find(tmp_path), T0 + 1000)["curves"]["loss"]
    assert curve["time"] == pytest.approx([0, 10, 60, 64, 85, 90])


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    write(tmp_path, "basel", RUN[:7], time=T0 + 28, round=12)
    state = look(find(tmp_path), T0 + 29)
    assert state["live"]
    assert state["sites"][0]["status"] == "waiting for bern"
    (sends,) = state["next"]
    assert (sends["what"], sends["bytes"], sends["round"], sends["waiting"]) == ("variable 1", 40, 12, {"bern": 500})
    assert not look(find(tmp_path), T0 + 60)["live"], "it has written nothing for a while"


def test_every_event_has_words() -> None:
    documented = journal.__doc__ or ""
    for kind in (
        "started",
        "connected",
        "lost",
        "skipped",
        "back",
        "caught-up",
        "joined",
        "retired",
        "members",
        "refused",
        "ended",
    ):
        assert kind in TEXTS
        assert f"\n{kind} " in documented
        (told,) = news("a", [event(0, kind, "b")])
        assert told["text"]
    assert news("a", [event(0, "computing"), event(0, "something new")]) == []


def test_damaged_and_hostile_files_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    place = write(tmp_path, "basel", [*RUN, event(81, "lost", "</script><b>")])
    with (place / journal.FILE).open("a") as file:
        file.write('{"time": "x", "kind": "lost"}\n[1]\nnothing\n{"kind": 5}\n{"time": 5')
    (place / "metrics.jsonl").write_text('{"step": 1, "loss')
    (place / now.FILE).write_text("[]")
    state = look(find(place))
    page = render(state)
    assert "</script><b>" not in page
    assert json.loads(page.split('id="state">')[1].split("</script>")[0])["news"] == state["news"]


def test_folders_and_names_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder nor a members' file"):
        find(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="holds no records of a site"):
        find(tmp_path)
    with pytest.raises(ValueError, match="leave it out"):
        find(tmp_path, "a")
    path = federation(tmp_path, ("a", "b"))
    with pytest.raises(FileNotFoundError, match="--as which one"):
        find(path)
    with pytest.raises(ValueError, match="unknown member 'c'"):
        find(path, "c")
    assert look(find(path, "a"))["sites"][0]["status"] == "has not started"


def test_a_port_in_use_is_answered_in_plain_words(tmp_path: Path) -> None:
    write(tmp_path, "basel", RUN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of this machine cannot be used.*--port"):
            listen(port)
        done = CliRunner().invoke(app, ["site", "watch", str(tmp_path), "--port", str(port)])
        assert isinstance(done.exception, OSError)


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """The page of a run in another process, and its address."""
    write(tmp_path, "basel", RUN)
    process = start([sys.executable, "-m", "docom", "site", "watch", str(tmp_path), "--port", "0"])
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://" in line, line
    yield process, "http://" + line.split("http://")[1].split("/")[0]
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_the_server_answers_the_local_host_only_and_ends_with_ctrl_c(
    served: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, url = served
    port = url.rpartition(":")[2]
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        page = client.get("/")
        assert page.status_code == 200
        assert "hearts" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-store")
        assert client.get("/state").json()["run"] == "hearts"
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{int(port) ^ 1}", ""):
            assert client.get("/state", headers={"Host": host}).status_code == 421, host
        assert client.get("/state", headers={"Host": f"localhost:{port}"}).status_code == 200
        assert client.get("/state", headers={"Origin": "http://evil.example"}).status_code == 403
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert client.request(method, "/state").status_code == 405
        assert client.get("/../../etc/passwd").status_code == 404
        with client.stream("GET", "/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))
            assert next(lines) == ""
            with (tmp_path / "basel" / journal.FILE).open("a") as file:
                file.write(json.dumps(event(90, "lost", "bern")) + "\n")
            second = json.loads(next(lines).removeprefix("data: "))
            assert len(second["news"]) == len(first["news"]) + 1
            process.send_signal(signal.SIGINT)
            assert list(lines) in ([], [""]), "the stream ends"
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "the page has ended" in out
    assert err == ""


def test_only_the_local_host_is_listened_at() -> None:
    with listen(0) as found:
        assert found.getsockname()[0] == "127.0.0.1"


def test_sites_write_how_their_links_are(tmp_path: Path) -> None:
    path = federation(tmp_path, ("a", "b"), topology="complete", heartbeat=0.2, patience=30)
    posts = [SitePost(site) for site in all_sites(path, ("a", "b"))]

    def work(post: SitePost) -> None:
        exchange_along_links(post, range(20))
        until = time.monotonic() + 20
        while not post.exchange.traffic.of(1 - post.rank).answers and time.monotonic() < until:
            time.sleep(0.05)
        post.finish()

    together([lambda p=p: work(p) for p in posts])
    found = {name: now.read(tmp_path / name) for name in "ab"}
    for name, other in ("ab", "ba"):
        mine, theirs = found[name]["links"][other], found[other]["links"][name]
        assert (found[name]["members"], found[name]["edges"], found[name]["name"]) == (["a", "b"], [[0, 1]], name)
        assert mine["latency"] > 0
        assert mine["sent"] >= theirs["received"] > 20 * 80
        assert (mine["arrived"], mine["waiting"], mine["again"], mine["connections"]) == (20, 0, 0, 1)
        link = look(find(tmp_path / name))["links"][0]
        assert link["there" if name == "a" else "back"]["bytes"] == mine["sent"]
    assert not os.path.exists(tmp_path / "a" / f"{now.FILE}.tmp")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demonstration_kills_a_site_and_ends_by_itself(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    process = start([sys.executable, "-m", "docom", "site", "demo", "--out", str(out), "--steps", "600"])
    said, errors = process.communicate(timeout=800)
    assert process.returncode == 0, said + errors
    assert "chur was killed" in said
    state = look(find(out))
    assert [site["status"] for site in state["sites"]] == ["has finished"] * 4
    away = {site["name"]: site["seconds"].get("away", 0.0) for site in state["sites"]}
    assert away["chur"] > 5
    assert {name for name, seconds in away.items() if seconds > 0} == {"chur"}
    for curve in state["curves"]["loss"]:
        assert curve["y"][-1] < curve["y"][0] / 5
        assert curve["time"] == sorted(curve["time"])
    assert (out / "page.png").read_bytes().startswith(b"\x89PNG")
    assert "four-sites" in (out / "page.html").read_text()


def test_a_picture_is_drawn_where_there_is_no_browser(tmp_path: Path) -> None:
    records(write(tmp_path, "basel", RUN), {0: 2.0, 10: 1.0, 20: 0.5})
    draw(look(find(tmp_path)), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_demonstration_removes_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = CliRunner().invoke(app, ["site", "demo", "--out", str(tmp_path)])
    assert isinstance(done.exception, FileExistsError)
    assert (tmp_path / "mine.txt").read_text() == "mine"
