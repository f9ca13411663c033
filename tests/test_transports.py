"""Routes, frames and counts of the transports between processes, with real exchanges over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docom.transports import ExchangeError, FrameRefused, PeerLost, Routes, blocks
from docom.weights import network
from docom.wire import HEADER_SIZE
from launching import TESTS, finish, mpirun, torchrun
from same_numbers import AGENTS

TOPOLOGIES = ("ring", "complete", "star", "erdos-renyi:0.4", "path")


@given(st.integers(1, 60), st.data())
def test_blocks_hold_every_agent_once(n: int, data: Any) -> None:
    world = data.draw(st.integers(1, n))
    found = blocks(n, world)
    assert [agent for block in found for agent in block] == list(range(n))
    assert len(found) == world
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("world", [0, 6])
def test_more_processes_than_agents_are_refused(world: int) -> None:
    with pytest.raises(ValueError, match=f"5 agents can be spread over 1 to 5 processes, got {world}"):
        blocks(5, world)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_what_one_process_sends_the_other_expects(topology: str, world: int) -> None:
    graph = network(topology, 8, None, 0)
    routes = [Routes.of(graph.neighbours, rank, world) for rank in range(world)]
    for here in routes:
        assert here.to.keys() == here.from_.keys()
        for other, agents in here.to.items():
            assert routes[other].from_[here.rank] == agents
            assert set(agents) <= set(here.agents)
        near = {j for i in here.agents for j in graph.neighbours[i]}
        assert here.senders == sorted(near | set(here.agents))


def test_the_diameter_is_that_of_the_processes() -> None:
    ring = network("ring", 10, None, 0).neighbours
    assert [Routes.of(ring, 0, world).diameter for world in (1, 2, 3, 5, 10)] == [0, 1, 1, 2, 5]


def test_errors_say_who_and_when() -> None:
    error = PeerLost([2, 3], "no message for 3 s", [1])
    error.step = 17
    assert str(error) == "agents 2, 3, step 17: no message for 3 s"
    assert str(PeerLost([], "gone", [1])) == "rank 1: gone"
    assert isinstance(FrameRefused([0], ""), ExchangeError)
    assert issubclass(ExchangeError, OSError)


# --- over real processes: tests/traffic.py ------------------------------------------------------------------


@pytest.fixture(scope="module", params=[7, pytest.param(3, marks=pytest.mark.slow)])
def traffic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world = int(request.param)
    path = tmp_path_factory.mktemp("traffic") / "counts.json"
    done = finish(torchrun(world, str(TESTS / "traffic.py"), str(path)))
    assert done.returncode == 0, done.stderr
    return {"world": world, **json.loads(Path(path).read_text())}


def test_bytes_really_sent_are_those_of_the_simulator_and_a_header_a_message(traffic: dict[str, Any]) -> None:
    for case, counts in traffic["cases"].items():
        payloads = counts["sent"] - HEADER_SIZE * counts["messages"]
        if traffic["world"] == 7:  # one agent a process: all that agents send crosses the network
            assert payloads == counts["wire_bytes"], case
            assert counts["messages"] == counts["ends"] * counts["rounds"], case
        else:  # neighbours in one process read each other's messages there, and share what comes from elsewhere
            assert 0 < payloads < counts["wire_bytes"], case


def test_an_average_sends_two_vectors_a_process_in_two_exchanges(traffic: dict[str, Any]) -> None:
    """Each process adds up an equal part of the entries; the last part is filled up with zeros."""
    counts, world = traffic["average"], traffic["world"]
    part = 4 * -(-counts["dimension"] // world)
    assert counts["messages"] == counts["rounds"] * (world - 1) * (AGENTS + world)  # parts of rows, then sums
    assert counts["sent"] == counts["messages"] * (HEADER_SIZE + part)
    if world == AGENTS:
        more = counts["sent"] - HEADER_SIZE * counts["messages"] - counts["wire_bytes"]
        assert 0 <= more < 2 * (world - 1) * world * 4 * counts["rounds"]


def test_all_processes_meet_after_the_same_step(traffic: dict[str, Any]) -> None:
    """Whoever asks, and whenever: all stop at one step, and not before it can be known everywhere."""
    check_meetings(traffic["meetings"], traffic["world"])


def check_meetings(meetings: list[tuple[int, list[int]]], world: int) -> None:
    diameter = Routes.of(network("ring", AGENTS, None, 0).neighbours, 0, world).diameter
    for asked, met in meetings:
        assert len(set(met)) == 1, (asked, met)
        assert asked < met[0] <= asked + diameter + 1


@pytest.mark.slow
def test_all_processes_meet_after_the_same_step_over_mpi(tmp_path: Path) -> None:
    done = finish(mpirun(3, str(TESTS / "traffic.py"), str(tmp_path / "counts.json"), "mpi"))
    assert done.returncode == 0, done.stderr
    check_meetings(json.loads((tmp_path / "counts.json").read_text())["meetings"], 3)


def test_the_gradient_of_the_old_model_is_computed_while_the_message_travels(traffic: dict[str, Any]) -> None:
    found = dict(traffic["overlap"])
    assert 0 < found.pop("allreduce-storm") <= 5, "an average that is there already needs no look ahead"
    assert found == {"docom": 5, "gt-hsgd": 5, "docom-beta1": 0}
