"""What a summary keeps of a network that changes: the truth about the rounds, in a bounded size."""

from __future__ import annotations

import json
from typing import Any

import pytest

import docom
from docom.experiment import Experiment
from docom.members.moments import MOST, MOST_LINKS
from docom.summary import summarise

N = 9


def summary_of(steps: int, topology: str, agents: int = N, **conditions: Any) -> dict[str, Any]:
    problem = docom.problems.LeafSynthetic(agents=agents, classes=2, features=2)
    experiment = Experiment(
        problem,
        docom.DoCoM(lr=0.01, gamma=0.2),
        topology=topology,
        compressor="topk:0.5",
        conditions=conditions,
        seed=3,
    )
    training = experiment.begin()
    for _ in range(steps):
        training.take_step()
    asked = {"hyper": {}}
    found: dict[str, Any] = json.loads(json.dumps(summarise(experiment, training, asked, "finished", "")))
    return found


@pytest.mark.parametrize("topology", ["ring", "complete", "random-edges:0.7,complete"])
@pytest.mark.parametrize("churn", [None, "every=4", "away=1/2,join@5:1,leave@9:4,crash@20:0"])
def test_links_that_were_down_are_the_messages_that_were_lost(topology: str, churn: str | None) -> None:
    found = summary_of(40, topology, outages=0.3, **({} if churn is None else {"churn": churn}))
    moments = found["moments"]
    assert [moment["step"] for moment in moments] == list(range(40))
    for moment in moments:
        assert all(edge in moment["edges"] for edge in moment["down"])
        assert not {agent for edge in moment["edges"] for agent in edge} & set(moment["away"])
    both_ways_two_variables = 4
    assert found["lost"] == both_ways_two_variables * sum(len(moment["down"]) for moment in moments) > 0


def test_members_at_a_moment_are_those_of_the_records() -> None:
    problem = docom.problems.LeafSynthetic(agents=N, classes=2, features=2)
    conditions = {"churn": "every=3"}
    run = docom.simulate(problem, docom.DSGD(lr=0.01), steps=30, eval_every=1, seed=3, conditions=conditions)
    members = [record["members"] for record in run.records]
    away = [len(moment["away"]) for moment in summary_of(30, "ring", **conditions)["moments"]]
    assert [N - missing for missing in away] == members[1:]
    assert len(set(members)) > 1


@pytest.mark.parametrize(("agents", "steps"), [(30, 200), (450, 60)])
def test_their_size_is_bounded(agents: int, steps: int) -> None:
    moments = summary_of(steps, "random-edges:0.5,complete" if agents < 100 else "ring", agents, outages=0.1)["moments"]
    assert len(moments) <= MOST
    assert sum(len(moment.get("edges", [])) for moment in moments) <= MOST_LINKS
    assert all(("links" in moment) == (agents > 400) for moment in moments)


def test_a_network_without_faults_needs_none() -> None:
    assert "moments" not in summary_of(5, "ring", loss=0.1)
