"""The optimizer at sites: the simulator's bits without a launcher, also after a site was killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import docom
import optim_agents as gang
from docom.optim import Decentralized
from sites import all_sites, federation
from test_optim_processes import simulated
from test_sites_post import together

pytest.importorskip("zmq")
NAMES = ("a", "b", "c", "d")
CASES = ("docom", "dsgd", "docom edges", "docom auto", "allreduce-sgd")


def made(site: docom.Site, model: nn.Module, name: str, **more: Any) -> Decentralized:
    algorithm, settings = gang.CASES[name]
    return Decentralized(model.parameters(), algorithm, seed=gang.SEED, model=model, site=site, **(settings | more))


def models() -> list[nn.Module]:
    """Made beforehand: torch's generator is the same for all threads. Only agent 0's counts."""
    return [gang.network(seed=number) for number in range(gang.AGENTS)]


def all_train(path: Path, work: Callable[[docom.Site, nn.Module], Any]) -> list[Any]:
    pairs = zip(all_sites(path, NAMES), models(), strict=True)
    return together([lambda pair=pair: work(*pair) for pair in pairs])


@pytest.mark.parametrize("name", CASES)
def test_same_bits_as_the_simulator(tmp_path: Path, name: str) -> None:
    def work(site: docom.Site, model: nn.Module) -> Any:
        with site:
            opt = made(site, model, name)
            gang.train(opt, model, range(gang.STEPS))
            found = gang.row(model), opt.measure()
            opt.consensus_()
            return *found, gang.row(model)

    answers = all_train(federation(tmp_path, NAMES, reachable=("a", "c")), work)
    assert not any(isinstance(answer, BaseException) for answer in answers), answers
    training = simulated(gang.CASES[name])
    assert torch.equal(torch.stack([row for row, _, _ in answers]), training.state.x)
    for _, stats, mean in answers:
        assert stats == {**answers[0][1], "bytes": stats["bytes"]}
        assert stats["bytes"] > 0
        assert torch.equal(mean, answers[0][2])


@pytest.mark.parametrize("name", ["docom", "docom edges", "gt-hsgd"])
@pytest.mark.parametrize("saved", [0, 2])
def test_a_killed_site_continues_bit_for_bit(tmp_path: Path, name: str, saved: int) -> None:
    """It is killed after step 4, and was saved after ``saved`` steps, or not at all."""
    path = federation(tmp_path, NAMES)
    again = gang.network(seed=8)

    def loop(site: docom.Site, model: nn.Module, end: int) -> torch.Tensor:
        state = site.load()
        opt = made(site, model, name)
        first = 0
        if state is not None:
            model.load_state_dict(state["model"])
            opt.load_state_dict(state["optimizer"])
            first = state["draw"]
        for draw in range(first, end):
            gang.train(opt, model, range(draw, draw + 1))
            if draw + 1 == saved:
                site.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "draw": draw + 1})
        return gang.row(model)

    def work(site: docom.Site, model: nn.Module) -> torch.Tensor:
        if site.name == "b":
            loop(site, model, 4)
            site._team.post.connections.close(at_once=True)
            site._owning.close()
            site, model = docom.Site(path, "b"), again
        with site:
            return loop(site, model, gang.STEPS)

    answers = all_train(path, work)
    assert not any(isinstance(answer, BaseException) for answer in answers), answers
    assert torch.equal(torch.stack(answers), simulated(gang.CASES[name]).state.x)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    path = federation(tmp_path, NAMES[:2], topology="complete")
    site, model = docom.Site(path, "a"), gang.network()
    for wrong in ({"topology": "star"}, {"weights": "metropolis"}, {"backend": "gloo"}, {"peer_timeout": 5.0}):
        with pytest.raises(ValueError, match="leave out " + next(iter(wrong))):
            made(site, model, "dsgd", **wrong)
    assert site.load() is None
    with pytest.raises(RuntimeError, match="nothing to save yet"):
        site.save({})
    (site.folder / "state-1.pt").parent.mkdir(exist_ok=True)
    torch.save({"optimizer": {}}, site.folder / "state-1.pt")
    with pytest.raises(ValueError, match=r"call site\.load"):
        made(site, model, "dsgd")
    (site.folder / "state-2.pt").write_bytes(b"cut short")
    assert site.load() == {"optimizer": {}}, "the one before a damaged one"
    opt = made(site, model, "dsgd")
    with pytest.raises(RuntimeError, match="load_state_dict"):
        gang.train(opt, model, range(1))
    with pytest.raises(ValueError, match="has an optimizer already"):
        made(site, model, "dsgd")
    site.close()
