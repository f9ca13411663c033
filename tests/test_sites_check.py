"""`docom site check`: which links are ready, why others are not, and that it leaves no trace in a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from docom.cli.app import app
from docom.sites import Site
from docom.sites.check import LinkFound, check, read
from docom.sites.post import SitePost
from sites import all_sites, federation
from test_sites_post import exchange_along_links, expected, together

pytest.importorskip("zmq")
NAMES = ("a", "b", "c", "d")


def test_links_that_are_ready_are_measured_at_both_ends(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:3], reachable=("a", "b"), topology="path")
    answers = together([lambda site=site: check(site, 30, 0.1) for site in all_sites(path, NAMES[:3])])
    assert [[link.name for link in links] for links in answers] == [["b"], ["a", "c"], ["b"]]
    assert [[link.opened_by for link in links] for links in answers] == [["a"], ["a", "c"], ["c"]]
    for link in (link for links in answers for link in links):
        assert link.ready
        assert link.latency is not None
        assert link.latency > 0
        assert link.up is not None
        assert link.down is not None
        assert min(link.up, link.down) > 1e5
    kept = read(tmp_path / "b")
    assert {name: (one["up"], one["down"], one["latency"]) for name, one in kept.items()} == {
        link.name: (link.up, link.down, link.latency) for link in answers[1]
    }


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES, topology="star")
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("patience: 30", "patience: 31"))
    sites = [Site(path, "a"), Site(other, "b"), Site(path, "c")]
    sites[2].keys = Site(path, "d").keys  # another key than the file lists for c
    links = together([lambda site=site: check(site, 5, 0.1) for site in sites])
    found = {link.name: link for link in links[0]}
    assert found["b"] == LinkFound("b", "a", False, "does not agree: patience: 31 at b, 30 here")
    assert found["c"].why == "answers, but does not prove the key that the members' file lists for it"
    assert found["d"].why == "no answer"
    assert links[1] == [LinkFound("a", "a", False, "does not agree: patience: 30 at a, 31 here")]
    assert not links[2][0].ready


def test_a_check_does_not_disturb_a_run(tmp_path: Path) -> None:
    """Site b is stopped, checks its links while a waits for it, and continues."""
    path = federation(tmp_path, NAMES[:2], topology="complete")
    a, b = (SitePost(site) for site in all_sites(path, NAMES[:2]))
    found: list[LinkFound] = []

    def with_a_check() -> None:
        assert exchange_along_links(b, range(5)) == expected(b, range(5))
        state = b.state()
        b.close()
        found.extend(check(Site(path, "b"), 20, 0.1))
        again = SitePost(Site(path, "b"))
        again.restore(state)
        assert exchange_along_links(again, range(5, 10)) == expected(again, range(5, 10))
        again.finish()

    def undisturbed() -> None:
        assert exchange_along_links(a, range(10)) == expected(a, range(10))
        a.finish()

    assert together([undisturbed, with_a_check]) == [None, None]
    assert [link.ready for link in found] == [True]


def test_the_command_tells_and_fails_where_a_link_is_not_ready(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    done = CliRunner().invoke(app, ["site", "check", str(path), "--as", "a", "--seconds", "1"])
    assert done.exit_code == 1
    assert "no answer" in done.output
