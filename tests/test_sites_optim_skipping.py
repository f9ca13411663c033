"""A user's own loop at sites that do not wait: it goes on when a neighbour is silent, and catches up when it was away itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import docom
import optim_agents as gang
from docom.optim import Decentralized
from docom.runfolder import RunFolder
from docom.sites import journal
from docom.watch.sources import find
from docom.watch.view import look
from sites import federation
from test_sites_post import together

pytest.importorskip("zmq")
NAMES = ("a", "b", "c")
WANTED = torch.tensor([[1.0, -2.0, 0.5]])
Between = Callable[[docom.Site, Decentralized, nn.Module, int], bool]


def a_model() -> nn.Linear:
    """The same at all sites, which are threads here and share torch's own generator: so it is not used."""
    model, draws = nn.Linear(3, 1), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draws) - 0.5)
    return model


def train(path: Path, name: str, rounds: int, walks: bool, between: Between) -> tuple[docom.Site, float]:
    """A loop as a user writes it; between two steps ``between`` says whether the process is killed there."""
    site, model = docom.Site(path, name), a_model()
    saved = site.load()
    inner = torch.optim.SGD(model.parameters(), lr=0.05) if walks else None
    method = docom.KGT(lr=1.0) if walks else docom.DSGD(lr=0.05)
    opt = Decentralized(model.parameters(), method, compressor="none", inner=inner, every=3 if walks else 1, site=site)
    if saved is not None:
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(site.agent))
    y = x @ WANTED.T + 0.1 * site.agent

    def loss() -> torch.Tensor:
        opt.zero_grad()
        found = nn.functional.mse_loss(model(x), y)
        found.backward()
        return found

    last = 0.0
    while opt.stats["step"] < rounds and not site.retired:
        before = opt.stats["step"]
        last = opt.step(loss).item()
        if opt.stats["step"] > before:
            site.record(opt.measure() | {"loss": last})
            if between(site, opt, model, int(opt.stats["step"])):
                site._team.links.connections.close(at_once=True)
                site._owning.close()
                return site, last
    site.finish()
    return site, last


def at_pace(site: docom.Site, opt: Decentralized, model: nn.Module, step: int) -> bool:
    time.sleep(0.02)
    return False


def kinds(site: docom.Site) -> set[tuple[str, str | None]]:
    return {(event["kind"], event["peer"]) for event in journal.read(site.folder)}


def everyone(works: list[Callable[[], Any]]) -> list[Any]:
    answers = together(works, 150)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


@pytest.mark.parametrize("walks", [False, True])
def test_undisturbed_loops_end_where_those_that_wait_do(tmp_path: Path, walks: bool) -> None:
    losses = {}
    for mode in ("wait", "skip"):
        more = (
            {} if mode == "wait" else {"mode": "skip", "gather": 60, "patience": 60}
        )  # nobody is skipped on busy cores
        path = federation(tmp_path / mode, NAMES, topology="complete", **more)
        found = everyone(
            [lambda name=name, path=path: train(path, name, 40, walks, lambda *a: False) for name in NAMES]
        )
        losses[mode] = [loss for _, loss in found]
    assert losses["skip"] == pytest.approx(losses["wait"], rel=0.02)


@pytest.mark.slow
def test_a_loop_goes_on_without_a_silent_neighbour_which_catches_up_when_it_returns(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES, topology="complete", mode="skip", patience=1, heartbeat=0.3, gather=30, behind=5)
    rounds = 150

    def dies(site: docom.Site, opt: Decentralized, model: nn.Module, step: int) -> bool:
        if step == 10:
            site.save({"model": model.state_dict(), "opt": opt.state_dict()})
        return at_pace(site, opt, model, step) or step == 12

    def killed_and_restarted() -> Any:
        train(path, "b", rounds, True, dies)
        until = time.monotonic() + 60
        while RunFolder(tmp_path / "a").reached() < 60 and time.monotonic() < until:
            time.sleep(0.05)
        return train(path, "b", rounds, True, at_pace)

    found = everyone(
        [
            lambda: train(path, "a", rounds, True, at_pace),
            killed_and_restarted,
            lambda: train(path, "c", rounds, True, at_pace),
        ]
    )
    a, b, c = (site for site, _ in found)
    assert {("skipped", "b"), ("back", "b")} <= kinds(a) | kinds(c)
    (caught,) = [event for event in journal.read(b.folder) if event["kind"] == "caught-up"]
    assert caught["from_round"] < 20 < 55 < caught["round"]
    assert all(loss < 0.02 for _, loss in found), "0.0067 is the least that one model can have on all data"
    for site in (a, b, c):
        records = RunFolder(site.folder).records()
        steps = [record["step"] for record in records]
        assert steps == sorted(set(steps)), "what was done again after the restart is there once"
        assert steps[-1] == rounds
        assert records[-1]["neighbour_gap"] < 0.1
    state = look(find(tmp_path))
    assert {name for curve in state["curves"]["loss"] for name in curve["sites"]} == set(NAMES)
    assert {curve["key"] for curve in state["curves"]["disagreement"]} == {"neighbour_gap"}


def test_what_needs_all_sites_is_refused(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete", mode="skip", gather=0.2)
    model = gang.network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def made(method: docom.Algorithm, **more: Any) -> Decentralized:
        return Decentralized(model.parameters(), method, model=model, site=docom.Site(path, "a"), **more)

    with pytest.raises(ValueError, match="sites that skip those that are away"):
        made(docom.DoCoM(lr=0.1, gamma=0.3))
    with pytest.raises(ValueError, match='gamma cannot be "auto" with mode: skip'):
        made(docom.ChocoSGD(lr=0.1, gamma="auto"), compressor="topk:0.3")
    with pytest.raises(ValueError, match="overlap needs all neighbours"):
        made(docom.GASLoC(gamma=1.0, momentum=0.3), inner=inner, every=4, overlap=2)
    with pytest.raises(ValueError, match="average"):
        made(docom.DSGD(lr=0.1), buffers="average")
    opt = made(docom.DSGD(lr=0.1))
    with pytest.raises(ValueError, match="no site has the models of all"):
        opt.consensus_()
    assert "neighbour_gap" not in opt.measure()


def test_records_of_a_loop(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    first = docom.Site(path, "a")
    for step in (1, 2, 3):
        first.record({"step": step, "loss": 1 / step, "consensus_distance": None})
    again = docom.Site(path, "a")
    again.record({"step": 3, "loss": 0.25})
    again.record({"step": 4, "loss": 0.2})
    found = RunFolder(first.folder).records()
    assert [(record["step"], record["loss"]) for record in found] == [(1, 1.0), (2, 0.5), (3, 0.25), (4, 0.2)]
    assert "consensus_distance" not in found[0]
    with pytest.raises(ValueError, match="a record needs the step"):
        again.record({"loss": 0.1})
