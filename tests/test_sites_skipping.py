"""Sites that go on without those that are away: real sockets, a thread for each site. Processes are in test_sites_faults.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from docom.algorithms import KGT
from docom.channels.linkwise import LinkwiseChannel
from docom.cli.sites import configured
from docom.experiment import Experiment
from docom.inner import SGD
from docom.loop import Training
from docom.runner import execute
from docom.sites import Site, journal, make_keys
from docom.sites.attendance import Attendance
from docom.sites.members_file import from_values, read
from docom.sites.rereading import SAME, not_after
from docom.sites.team import ApartTeam
from launching import free_port
from same_numbers import small_problem
from sites import federation
from test_sites_post import together

pytest.importorskip("zmq")
NAMES = ("a", "b", "c", "d")
STEPS = 60
RUN = {
    "preset": "synthetic", "algorithm": "k-gt", "compressor": "none", "steps": STEPS, "eval_every": 10, "batch_size": 10,
    "problem": {"name": "leaf-synthetic", "features": 10, "classes": 3}, "hyper": {"lr": 1.0},
    "inner": {"name": "sgd", "lr": 0.05}, "local_steps": 3,
}  # fmt: skip


class Killed(Exception):
    """As if the process had been."""


class Team(ApartTeam):
    """Does something between steps."""

    def __init__(self, site: Site, then: Callable[[Team, Training], None]) -> None:
        super().__init__(site, site.note)
        self.then = then

    def after_step(self, training: Training, steps: int) -> bool:
        ends = super().after_step(training, steps)
        self.training = training
        self.then(self, training)
        return ends


def nothing(team: Team, training: Training) -> None:
    time.sleep(0.005)


def work(
    path: Path, name: str, then: Callable[[Team, Training], None] = nothing, resume: bool = False
) -> tuple[Team, Any]:
    """A run of one site; returns when no neighbour needs it any more."""
    site = Site(path, name)
    team = Team(site, then)
    try:
        outcome = execute(
            configured(site), site.folder, path.parent / "data", resume, checkpoint_seconds=0.2, team=team
        )
    except Killed:
        team.links.connections.close(at_once=True)
        raise
    team.leave()
    return team, outcome


def everyone(works: list[Callable[[], Any]]) -> list[Any]:
    answers = together(works, 250)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in journal.read(folder)]


def check_sums(teams: list[Team]) -> None:
    """What the ends of a link have got over it adds up to zero, after as many exchanges of the same epoch."""
    by_agent = {team.rank: team.links for team in teams}
    compared = 0
    for i, links in by_agent.items():
        for (j, variable), pair in links._pairs.items():
            if j not in by_agent or (variable, j) not in links.given:
                continue
            other = by_agent[j]._pairs.get((i, variable))
            if other is None or pair.epoch is None or other.epoch != tuple(reversed(pair.epoch)):
                continue
            if other.number == pair.number:
                compared += 1
                assert torch.equal(links.given[variable, j], -by_agent[j].given[variable, i])
    assert compared, "no link was compared"


def final_losses(answers: list[Any]) -> list[float]:
    return [outcome.records[-1]["loss_worst"] for _, outcome in answers]


def simulated(path: Path, folder: Path) -> float:
    """The loss of a run that nothing disturbs."""
    config = replace(configured(Site(path, "a")), topology="ring")
    return float(execute(config, folder, folder / "data").records[-1]["loss_worst"])


@pytest.mark.parametrize("method", ["k-gt", "choco-sgd"])
def test_undisturbed_sites_end_where_the_simulator_does(tmp_path: Path, method: str) -> None:
    more = (
        {}
        if method == "k-gt"
        else {"algorithm": method, "compressor": "quantize:8", "hyper": {"lr": 1.0, "gamma": 0.8}}
    )
    path = federation(tmp_path, NAMES, run=RUN | more, mode="skip", patience=20, gather=60)
    answers = everyone([lambda name=name: work(path, name) for name in NAMES])
    expected = simulated(path, tmp_path / "simulated")
    for loss in final_losses(answers):
        assert loss == pytest.approx(expected, rel=0.02)
    for name in NAMES:
        found = journal.read(tmp_path / name)
        assert found[0]["mode"] == "skip"
        assert (found[-1]["kind"], found[-1]["why"]) == ("ended", "finished")
    if method == "k-gt":
        check_sums([team for team, _ in answers])


def test_one_is_killed_for_good_and_one_comes_back(tmp_path: Path) -> None:
    path = federation(
        tmp_path,
        NAMES,
        run=RUN | {"steps": 150},
        mode="skip",
        patience=2,
        heartbeat=0.5,
        gather=60,
        behind=10,
        topology="complete",
    )

    def dies(team: Team, training: Training) -> None:
        time.sleep(0.01)
        if training.step == 30:
            raise Killed

    def killed() -> None:
        with pytest.raises(Killed):
            work(path, "b", dies)

    def restarted() -> tuple[Team, Any]:
        with pytest.raises(Killed):
            work(path, "d", dies)
        time.sleep(3)  # longer than the patience
        return work(path, "d", lambda team, training: time.sleep(0.01), resume=True)

    def goes_on(name: str) -> tuple[Team, Any]:
        return work(path, name, lambda team, training: time.sleep(0.03))

    answers = everyone([lambda: goes_on("a"), lambda: goes_on("c"), restarted, killed])[:3]
    assert all(outcome.status == "finished" for _, outcome in answers)
    for name in ("a", "c"):
        skipped = {event["peer"] for event in journal.read(tmp_path / name) if event["kind"] == "skipped"}
        assert {"b", "d"} <= skipped, name
    caught = [event for event in journal.read(tmp_path / "d") if event["kind"] == "caught-up"]
    assert caught, "it went on from where the others were"
    assert caught[0]["from_round"] + 10 < caught[0]["round"]
    assert "back" in kinds(tmp_path / "a") + kinds(tmp_path / "c")
    check_sums([team for team, _ in answers])
    before = max(record["loss_worst"] for _, outcome in answers for record in outcome.records[:1])
    assert max(final_losses(answers)) < 0.3 * before


def test_a_site_that_takes_over_a_round_has_its_inner_step_sizes() -> None:
    """Those of a schedule follow the round, and not how many inner steps the site itself has taken."""

    def begun() -> Training:
        inner = SGD(lr="steps:0.1,factor=0.1,at=20")
        return Experiment(small_problem(), KGT(lr=1.0), batch_size=2, inner=inner, local_steps=3).begin()

    jumps, all_steps = begun(), begun()
    jumps.take_step()
    jumps.jump(10)
    for _ in range(10):
        all_steps.take_step()
    assert jumps.step == all_steps.step == 10
    assert torch.equal(jumps.oracle.rows()["progress"][:, :2], all_steps.oracle.rows()["progress"][:, :2])
    assert {name: channel.rounds for name, channel in jumps.channels.items()} == {
        name: channel.rounds for name, channel in all_steps.channels.items()
    }
    for training in (jumps, all_steps):
        training.take_step()
    assert jumps.oracle.path == all_steps.oracle.path == pytest.approx(3 * 0.01)


@pytest.mark.slow
def test_members_come_and_go_with_a_new_file(tmp_path: Path) -> None:
    names = NAMES[:3]
    path = federation(tmp_path, names, run=RUN | {"steps": 200}, mode="skip", patience=5, gather=60, places=4)
    changed = threading.Event()

    def a(team: Team, training: Training) -> None:
        time.sleep(0.02)
        if training.step == 30:
            values = yaml.safe_load(path.read_text())
            key = make_keys("d", tmp_path / "keys")[1]
            values["members"].append({"name": "d", "key": key, "address": f"127.0.0.1:{free_port()}"})
            values["members"][1]["retired"] = True
            path.write_text(yaml.dump(values | {"version": 1}))  # forgotten to make it larger
            time.sleep(2.5)
            new = path.with_suffix(".new")
            new.write_text(yaml.dump(values | {"version": 2}))
            new.replace(path)
            changed.set()

    def d() -> tuple[Team, Any]:
        assert changed.wait(60)
        return work(path, "d", lambda team, training: time.sleep(0.02))

    waits = lambda team, training: time.sleep(0.02)  # noqa: E731
    answers = everyone([lambda: work(path, "a", a), lambda: work(path, "b", waits), lambda: work(path, "c", waits), d])
    statuses = [outcome.status for _, outcome in answers]
    assert statuses == ["finished", "stopped", "finished", "finished"], "the retired one ends"
    for name in ("a", "c"):
        found = journal.read(tmp_path / name)
        assert ("joined", "d") in [(event["kind"], event["peer"]) for event in found]
        assert ("retired", "b") in [(event["kind"], event["peer"]) for event in found]
        assert any(event["kind"] == "connected" and event["peer"] == "d" for event in found)
        assert any(event["kind"] == "refused" and "larger one" in event["why"] for event in found)
        assert read(path).digest[:16] in [event.get("digest") for event in found]
    assert answers[3][1].records[-1]["step"] == 200
    assert any(event["kind"] == "caught-up" for event in journal.read(tmp_path / "d"))
    check_sums([answers[number][0] for number in (0, 2, 3)])
    for team, _ in (answers[0], answers[2]):
        assert all(other != 1 for _, other in team.links.given), (
            "what came over the link of the retired one is taken out"
        )


def test_a_member_that_sends_garbage_is_shut_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = federation(tmp_path, NAMES, run=RUN, mode="skip", patience=5, gather=60)
    whole = LinkwiseChannel._message

    def message(self: LinkwiseChannel, x: Any, other: int, header: Any) -> bytes:
        body = whole(self, x, other, header)
        if int(self.transport.agents[0]) == 1 and header.round == 20:
            return b"\xff" * len(body)  # numbers that are not finite
        if int(self.transport.agents[0]) == 3 and header.round == 20:
            return body + b"\0" * 1000
        return body

    monkeypatch.setattr(LinkwiseChannel, "_message", message)
    answers = everyone([lambda name=name: work(path, name) for name in NAMES])
    for name in ("a", "c"):
        out = {
            (event["peer"], event["why"].split(":")[0])
            for event in journal.read(tmp_path / name)
            if event["kind"] == "shut-out"
        }
        assert {peer for peer, _ in out} == {"b", "d"}
    assert max(final_losses(answers)) < 2, "no number that is not finite came in"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"algorithm": "led"}, "led does not say that it works with sites that skip"),
        (
            {"algorithm": "choco-sgd", "compressor": "topk:0.1", "hyper": {"lr": 0.1, "gamma": "auto"}},
            'cannot be "auto"',
        ),
        ({"algorithm": "choco-sgd", "compressor": "edge-lowrank:1", "hyper": {"lr": 0.1, "gamma": 1.0}}, "mode: wait"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    path = federation(tmp_path, NAMES, run=RUN | more, mode="skip")
    with pytest.raises(ValueError, match=message):
        work(path, "a")


def test_settings_of_the_mode_are_checked(tmp_path: Path) -> None:
    values = yaml.safe_load(federation(tmp_path, NAMES).read_text())
    for wrong, message in (
        ({"mode": "hurry"}, "mode is wait"),
        ({"places": 8}, "belongs to mode: skip"),
        ({"mode": "skip", "places": 3}, "at least 4"),
        ({"mode": "skip", "weights": "lazy"}, "metropolis"),
        ({"mode": "skip", "clip": 0.5}, "clip is a number >= 1"),
        ({"mode": "skip", "version": "2"}, "version is a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            from_values(values | wrong)
    retired = [member | {"retired": member["name"] == "c"} for member in values["members"]]
    with pytest.raises(ValueError, match="belongs to mode: skip"):
        from_values(values | {"members": retired})
    found = from_values(values | {"members": retired, "mode": "skip", "places": 6})
    assert found.neighbours(0) == [1, 3]
    assert found.neighbours(2) == []
    assert found.network.n == 6
    assert found.weight(0) == pytest.approx(1 / 3)


def test_which_file_may_follow_which(tmp_path: Path) -> None:
    values = yaml.safe_load(federation(tmp_path, NAMES, mode="skip", places=5, run=RUN).read_text())
    before = from_values(values)
    members = values["members"]
    new = {"name": "e", "key": make_keys("e", tmp_path / "keys")[1], "address": "127.0.0.1:7"}
    assert not_after(before, from_values(values), 0) == SAME
    assert not_after(before, from_values(values | {"version": 2, "members": [*members, new]}), 0) == ""
    moved = [members[0] | {"address": "127.0.0.1:9"}, *members[1:]]
    assert not_after(before, from_values(values | {"version": 2, "members": moved}), 0) == ""
    for more, message in (
        ({"members": [*members, new]}, "larger one"),
        ({"version": 2, "members": members[:3]}, "d is missing"),
        ({"version": 2, "members": [new, *members[1:]]}, "a has another place or key"),
        ({"version": 2, "behind": 7}, "behind cannot change"),
        ({"version": 2, "run": RUN | {"steps": 9}}, "run steps cannot change"),
        ({"version": 2, "name": "other"}, "name cannot change"),
    ):
        assert message in not_after(before, from_values(values | more), 0)
    gone = [*members[:3], members[3] | {"retired": True}]
    later = from_values(values | {"version": 2, "members": gone})
    assert "cannot come back" in not_after(later, from_values(values | {"version": 3}), 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_a_neighbour_that_is_always_late_costs_the_patience_a_few_times(answers: list[bool]) -> None:
    found, waited = Attendance(), 0
    for round, in_time in enumerate(answers):
        if found.waits and not in_time:
            found.missed(round)
            waited += 1
            assert not found.waits
        elif in_time:
            before = found.waits
            assert found.answered(round, round) == (found.waits and not before)
    assert waited <= answers.count(False)
    if not any(answers):
        assert waited == 1, "one that never answers is waited for once"


def test_a_neighbour_that_returns_is_waited_for_again() -> None:
    found = Attendance()
    found.missed(10)
    assert not found.answered(11, 11), "not at once"
    assert not found.answered(20, 13), "it has taken seven rounds"
    assert found.answered(20, 19)
    assert found.waits
    found.missed(21)
    assert found.again == 25, "the second time it takes longer"
    assert found.answered(30, 30)
    assert not found.answered(100, 100)
    assert found.skips == 0, "it has kept pace for long"


def test_a_site_that_reaches_nobody_waits_for_one(tmp_path: Path) -> None:
    """It does not run ahead, and goes on with the first one that returns."""
    path = federation(
        tmp_path, NAMES[:2], run=RUN, mode="skip", patience=1.5, heartbeat=0.5, gather=60, topology="complete"
    )

    def dies(team: Team, training: Training) -> None:
        if training.step == 20:
            raise Killed

    def restarted() -> tuple[Team, Any]:
        with pytest.raises(Killed):
            work(path, "b", dies)
        time.sleep(3)
        return work(path, "b", resume=True)

    (_, one), (_, other) = everyone([lambda: work(path, "a"), restarted])
    assert (one.status, other.status) == ("finished", "finished")
    rounds = [event["round"] for event in journal.read(tmp_path / "a") if event["kind"] == "skipped"]
    assert rounds, "it has noticed"
    assert rounds[0] <= 22
    log = (tmp_path / "a" / "site.log").read_text()
    assert "reaches no neighbour" in log
    taken = [event["round"] for event in journal.read(tmp_path / "b") if event["kind"] == "caught-up"]
    assert all(round <= 24 for round in taken), "the other one has not gone on alone"
