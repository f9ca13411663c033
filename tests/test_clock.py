"""The simulated clock: exact prices of synchronous runs, and numbers that do not change because of it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import docom
from conftest import least_squares
from docom import checkpoint
from docom.cli.app import app
from docom.clock import Lines, Timeline, arriving
from docom.clock.compute import ComputeTimes, held_up, intervals
from docom.clock.lanes import BINS, KINDS, MOST, Lanes
from docom.clock.lines import LONG_AGO
from docom.conditions import Clock
from docom.conditions.clock_settings import parse
from docom.config import from_dict
from docom.experiment import Experiment
from docom.inner import SGD
from docom.loop import Training, train
from docom.metrics import measure
from docom.problems import LeafSynthetic

N = 8
RING = [(i, j) for i in range(N) for j in sorted(((i - 1) % N, (i + 1) % N))]


def run(algorithm: Any, clock: Any, steps: int = 6, agents: int = N, **more: Any) -> docom.Run:
    problem = LeafSynthetic(agents=agents, classes=3, features=7)
    given_ = {"batch_size": 2, "steps": steps, "eval_every": 1, "dtype": "float64"} | more
    return docom.simulate(problem, algorithm, conditions={"clock": clock} if clock is not None else None, **given_)


def times(found: docom.Run) -> list[float]:
    return [record["clock"] for record in found.records]


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("docom", {"algorithm": docom.DoCoM(lr=0.05, gamma=0.3), "compressor": "topk:0.3"}),
    ("edges", {"algorithm": docom.DoCoM(lr=0.05, gamma=1.0), "compressor": "edge-lowrank:1,rounds=2,sides=1"}),
    ("dsgd", {"algorithm": docom.DSGD(lr=0.05), "topology": "exponential"}),
    ("all-reduce", {"algorithm": docom.AllReduceSGD(lr=0.05)}),
    ("links", {"algorithm": docom.AllReduceSGD(lr=0.05), "compressor": "mean-lowrank:1,over=links"}),
    ("diloco", {"algorithm": docom.DiLoCo(lr=1.0), "inner": SGD(lr=0.05), "local_steps": 3, "overlap": 1}),
    ("unequal", {"algorithm": docom.DSGD(lr=1.0), "inner": SGD(lr=0.05), "local_steps": [1, 2, 3, 4, 1, 2, 3, 4]}),
    ("relayed", {"algorithm": docom.SparseLoCo(), "compressor": "mean-topk:2,chunk=3"}),
    ("tree", {"algorithm": docom.AllReduceSGD(lr=0.05), "compressor": "mean-tree:2"}),
    ("proxskip", {"algorithm": docom.ProxSkip(), "inner": SGD(lr=0.05), "local_steps": 3}),
]


@pytest.mark.parametrize(("name", "how"), METHODS)
def test_a_clock_changes_no_number_of_a_run(name: str, how: dict[str, Any]) -> None:
    clock = "step=0.2,spread=lognormal:0.4,latency=20ms,up=1mbit,down=2mbit,slow=3:10,outages=1@1-3/0-1@2-4"
    plain, priced = run(**how, clock=None), run(**how, clock=clock)
    assert torch.equal(plain.x, priced.x)
    for one, other in zip(plain.records, priced.records, strict=True):
        assert {**other, "seconds": 0, "clock": 0} == {**one, "seconds": 0, "clock": 0}
    assert all(later > earlier for earlier, later in zip(times(priced)[:-1], times(priced)[1:], strict=True))
    again = run(**how, clock=clock)
    assert times(again) == times(priced)


def test_a_step_of_gossip_takes_its_gradient_and_its_messages() -> None:
    found = run(docom.DSGD(lr=0.05), "step=0.2,latency=50ms,up=100kbit,down=100kbit,overhead=30,headers=66")
    message = 8 * (24 * 8 + 30 + 66) / 1e5  # 24 numbers of float64; two of these share each line
    expected = [0.2 + t * (0.2 + 0.05 + 2 * message) for t in range(7)]
    assert times(found) == pytest.approx(expected, rel=1e-12)
    assert found.description["clock"]["computing"] == pytest.approx([7 * 0.2] * N)
    assert found.description["clock"]["waiting"] == pytest.approx([6 * (0.05 + 2 * message)] * N)


@pytest.mark.parametrize(("compressor", "exchanges"), [("mean-topk:2,chunk=3", 4), ("mean-tree:2", 8)])
def test_messages_that_are_passed_on_wait_for_one_another(compressor: str, exchanges: int) -> None:
    """As far as the farthest agent of the ring; up a tree that reaches as far, and down again."""
    found = run(docom.AllReduceSGD(lr=0.01), "step=0.2,latency=50ms", compressor=compressor)
    assert times(found) == pytest.approx([0.2 + t * (0.2 + 0.05 * exchanges) for t in range(7)], rel=1e-12)


def test_what_does_not_need_a_message_is_computed_while_it_travels() -> None:
    # DoCoM: the gradient at the old model meanwhile, that at the new one after; then the tracker's message.
    for step, latency in ((0.2, 0.5), (0.5, 0.2)):
        found = run(
            docom.DoCoM(lr=0.05, gamma=0.3, beta=0.5, b0=2), Clock(step=step, latency=latency), compressor="topk:0.3"
        )
        one = max(step, latency) + step + latency
        assert times(found) == pytest.approx([step + t * one for t in range(7)], rel=1e-12)


def test_local_steps_count_and_overlap() -> None:
    how: dict[str, Any] = {"inner": SGD(lr=0.05), "local_steps": 5}
    clock = Clock(step=0.1, latency=0.25)
    plain = run(docom.DSGD(lr=1.0), clock, **how)
    assert times(plain) == pytest.approx([0.5 + t * 0.75 for t in range(7)], rel=1e-12)
    overlapped = run(docom.DSGD(lr=1.0), clock, **how, overlap=2)
    assert times(overlapped) == pytest.approx([0.5 + t * (0.25 + 0.3) for t in range(7)], rel=1e-12)


def test_averages_over_links_and_half_rounds_count_as_the_messages_they_are() -> None:
    clock = Clock(step=0.0, latency=1.0)
    relayed = run(docom.AllReduceSGD(lr=0.05), clock, compressor="mean-lowrank:1,over=links", topology="exponential")
    assert times(relayed)[1:] == pytest.approx([2 * 3 * t for t in range(1, 7)])  # both factors, log2 8 exchanges each
    halves = run(docom.ChocoSGD(lr=0.05, gamma=1.0), clock, compressor="edge-lowrank:1,rounds=2,sides=1")
    assert times(halves)[1:] == pytest.approx([2 * t for t in range(1, 7)])


def test_messages_that_agents_pass_on_take_an_exchange_for_every_hop() -> None:
    found = run(
        docom.SparseLoCo(),
        Clock(step=0.0, latency=1.0),
        compressor="mean-topk:8,chunk=8",
        inner=SGD(lr=0.05),
        local_steps=2,
    )
    assert times(found) == pytest.approx(
        [4.0 * t for t in range(7)]
    )  # the farthest agent of a ring of 8 is 4 links away


@pytest.mark.parametrize("repair", ["resend", "edges"])
@pytest.mark.parametrize("name", ["docom", "dsgd"])
def test_lost_messages_take_their_time_and_what_is_sent_again_more(name: str, repair: str) -> None:
    method: dict[str, Any] = dict(METHODS)[name] | {"algorithm": dict(METHODS)[name]["algorithm"]}
    method |= {"topology": "ring"}

    def timed(clock: str, **conditions: Any) -> list[float]:
        problem = LeafSynthetic(agents=N, classes=3, features=7)
        found = docom.simulate(
            problem,
            batch_size=2,
            steps=12,
            eval_every=1,
            dtype="float64",
            conditions={"clock": clock} | conditions,
            **method,
        )
        return times(found)

    narrow = "step=0.2,spread=exponential,latency=20ms,up=10kbit,down=20kbit,slow=3:4,links=0-1:5kbit:200ms"
    assert timed(narrow, loss=1e-12, repair=repair) == timed(narrow)  # a loss that never happens
    early, late = timed(narrow), timed(narrow, loss=0.4, repair=repair)
    assert (np.array(late) >= early).all()
    assert late[-1] > early[-1] if repair == "resend" else late == early  # all that is owed, or one message at a time
    wide = "step=0.2,latency=20ms,slow=3:4"
    assert timed(wide, loss=0.4, delay=2, repair=repair) == timed(wide)


def test_an_all_reduce_passes_pieces_around_a_ring() -> None:
    found = run(docom.AllReduceSGD(lr=0.05), "step=0.2,latency=10ms,up=100kbit,down=100kbit")
    piece = 24 * 8 / N
    expected = [0.2 + t * (0.2 + 14 * (0.01 + 8 * piece / 1e5)) for t in range(7)]
    assert times(found) == pytest.approx(expected, rel=1e-12)


@given(st.integers(2, 9), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_short_way_through_an_all_reduce_is_the_long_one(n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    clock = Clock(latency=0.01, up=draw.uniform(1e4, 1e6, n), down=draw.uniform(1e4, 1e6, n))
    timeline, lines = Timeline(clock, n, 0), Lines(clock, n)
    ring = lines.pattern([(i, (i + 1) % n) for i in range(n)])
    now = draw.uniform(0, 1, n)
    timeline.now = now.copy()
    timeline.all_reduce(ring, 800.0)
    for _ in range(2 * (n - 1)):
        now = np.maximum(now, lines.exchange(now, ring, float(np.ceil(800 / n))))
    timeline.settle()
    assert timeline.now == pytest.approx(now, rel=1e-9)


def passed_on(begins: list[float], lasts: list[float], bits: list[float], rate: float) -> float:
    """When a line of this rate has passed on messages that come in evenly: its queue, followed from mark to mark."""
    marks = sorted({*begins, *(b + w for b, w in zip(begins, lasts, strict=True))})
    queue = sum(size for b, w, size in zip(begins, lasts, bits, strict=True) if b == marks[0] and w == 0)
    for here, there in itertools.pairwise(marks):
        coming = sum(size / w for b, w, size in zip(begins, lasts, bits, strict=True) if w > 0 and b <= here < b + w)
        queue = max(0.0, queue + (coming - rate) * (there - here))
        queue += sum(size for b, w, size in zip(begins, lasts, bits, strict=True) if b == there and w == 0)
    return marks[-1] + queue / rate


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_messages_share_lines_exactly(seed: int, unlimited: bool) -> None:
    draw = np.random.default_rng(seed)
    n = 6
    up = None if unlimited else draw.uniform(10, 100, n)
    clock = Clock(latency=0.3, up=up, down=draw.uniform(10, 100, n))
    lines, ready = Lines(clock, n), draw.uniform(0, 3, n)
    ends = [(i, j) for i in range(n) for j in range(n) if i != j and draw.random() < 0.6]
    sizes = draw.uniform(1, 20, len(ends))
    found = lines.exchange(ready, lines.pattern(ends), sizes)
    sent = np.bincount([i for i, _ in ends], 8 * sizes, n)
    for receiver in range(n):
        mine = [e for e, (_, j) in enumerate(ends) if j == receiver]
        if not mine:
            assert found[receiver] == LONG_AGO
            continue
        begins = [ready[ends[e][0]] + 0.3 for e in mine]
        lasts = [0.0 if up is None else sent[ends[e][0]] / up[ends[e][0]] for e in mine]
        expected = passed_on(begins, lasts, [8 * sizes[e] for e in mine], clock.down[receiver])  # type: ignore[index]
        assert found[receiver] == pytest.approx(expected, rel=1e-9)


def test_a_busy_line_delays_the_next_exchange() -> None:
    # A hub with a slow downlink: its neighbours may begin their next messages early, the line passes on no more for that.
    n = 5
    lines = Lines(Clock(down=[8e3, 1e12, 1e12, 1e12, 1e12]), n)
    pattern = lines.pattern([(i, 0) for i in range(1, n)])
    ready = np.zeros(n)
    arrivals = [lines.exchange(ready, pattern, 1000.0)[0] for _ in range(5)]
    assert arrivals == pytest.approx([4.0, 8.0, 12.0, 16.0, 20.0])


def test_a_slow_agent_holds_up_a_synchronous_run() -> None:
    plain, slow = (run(docom.DSGD(lr=0.05), f"step=0.1{more}") for more in ("", ",slow=3:10"))
    assert times(slow)[-1] == pytest.approx(10 * times(plain)[-1])
    waiting = slow.description["clock"]["waiting"]
    assert waiting[3] == 0
    assert min(waiting[:3] + waiting[4:]) > 0


def test_times_are_drawn_with_the_right_mean_or_taken_from_a_trace() -> None:
    ones, zeros = np.ones(4000), np.zeros(4000)
    for spread in ("lognormal:0.5", "exponential"):
        drawn = ComputeTimes(Clock(step=0.3, spread=spread), 4000, 1)
        first, second = drawn.of(ones, zeros, 0), drawn.of(3 * ones, zeros, 1)
        assert first.mean() == pytest.approx(0.3, rel=0.05)
        assert second.mean() == pytest.approx(0.9, rel=0.05)
        assert (first > 0).all()
        works = np.concatenate([drawn.works(agent, 2, 64, 50) for agent in range(80)])
        assert works.mean() == pytest.approx(0.6, rel=0.05)
    width = np.log(ComputeTimes(Clock(spread="lognormal:0.5"), 4000, 1).of(ones, zeros, 0)).std()
    assert width == pytest.approx(0.5, rel=0.05)
    traced = run(docom.DSGD(lr=0.05), Clock(trace=[0.1, 0.2, 0.4], slow={1: 2}))
    steps = np.cumsum([0.1, 0.2, 0.4, 0.1, 0.2, 0.4, 0.1])
    assert times(traced) == pytest.approx((2 * steps).tolist())
    each = Clock(trace=[[0.1 * (agent + 1) for agent in range(N)]])
    assert times(run(docom.DSGD(lr=0.05), each))[-1] == pytest.approx(0.8 * 7)


def test_work_rests_during_outages() -> None:
    clock = Clock(outages=["0@1-3", "0@2-4", "1-2@5-8"])
    agents = intervals(clock, [[(0,)], [(1,)], [(2,)]])
    begin, lasts = held_up(np.array([0.5, 0.5, 2.0]), np.array([1.0, 1.0, 1.0]), agents)
    assert begin.tolist() == [0.5, 0.5, 2.0]
    assert lasts.tolist() == [4.0, 1.0, 1.0]
    begin, _ = held_up(np.array([1.0, 0.0, 0.0]), np.ones(3), agents)
    assert begin[0] == 4.0
    found = run(docom.DSGD(lr=0.05), Clock(step=1.0, outages=["3@2.5-7"]))
    assert times(found) == pytest.approx([1, 2, 7.5, 8.5, 9.5, 10.5, 11.5])
    link = run(docom.DSGD(lr=0.05), Clock(step=1.0, outages=["0-1@1.5-5"]))
    assert times(link) == pytest.approx([1, 2, 6, 7, 8, 9, 10])
    assert found.description["clock"]["away"] == pytest.approx([4.5 if agent == 3 else 0 for agent in range(N)])


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_every_second_of_an_agent_is_counted_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    spans = np.cumsum(draw.uniform(0.1, 4, (3, 2)), axis=1)
    outages = [f"{agent}@{low}-{high}" for agent, (low, high) in zip((0, 0, 2), spans.tolist(), strict=True)]
    clock = Clock(step=0.3, spread="exponential", latency=0.1, up=5e3, down=3e3, outages=[*outages, "0-1@1-2"])
    timeline = Timeline(clock, N, seed)
    ring = timeline.lines.pattern(RING)
    for _ in range(40):
        timeline.compute(1.0)
        timeline.exchange(ring, float(draw.integers(0, 50)))
    timeline.settle()
    assert timeline.computing + timeline.waiting + timeline.away == pytest.approx(timeline.now, rel=1e-9)
    for kind, sums in (("computing", timeline.computing), ("waiting", timeline.waiting), ("away", timeline.away)):
        assert timeline.lanes.seconds[kind].sum(axis=1) == pytest.approx(sums, abs=1e-9)
    shares = timeline.lanes.to_dict()
    total = np.sum([shares[kind] for kind in ("computing", "waiting", "away")], axis=0)
    assert (total <= 1.01).all()


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_lanes_of_many_agents_are_a_few_of_them_and_the_sum_of_all(seed: int) -> None:
    draw, n = np.random.default_rng(seed), MOST + 9
    lanes, singly, exact = Lanes(n, [n - 1, 3]), Lanes(n, [n - 1, 3]), np.zeros(3)
    assert {3, n - 1} <= set(lanes.agents.tolist())
    assert len(lanes.agents) == MOST
    now = np.zeros(n)
    for number in range(60):
        kind, later = KINDS[number % 3], now + draw.exponential(0.3, n) * (draw.random(n) < 0.8)
        lanes.add(kind, now, later)
        for agent in range(n):
            singly.add_one(kind, agent, float(now[agent]), float(later[agent]))
        exact[number % 3] += (later - now).sum()
        now = later
    for kind, total in zip(KINDS, exact, strict=True):
        assert lanes.together[kind].sum() == pytest.approx(total)
        assert singly.together[kind] == pytest.approx(lanes.together[kind], abs=1e-9)
        assert singly.seconds[kind] == pytest.approx(lanes.seconds[kind], abs=1e-9)
    again = Lanes(n, [n - 1, 3])
    again.load(lanes.dump())
    assert again.to_dict() == lanes.to_dict()
    assert len(lanes.to_dict()["together"]["away"]) <= BINS


def begun(name: str, **more: Any) -> Training:
    method = docom.DoCoM(lr=0.05, gamma=0.3) if name == "docom" else docom.AllReduceSGD(lr=0.05)
    clock = "step=0.2,spread=lognormal,latency=20ms,up=10kbit,down=20kbit,slow=3:4,outages=1@1-3"
    problem = LeafSynthetic(agents=5, classes=3, features=7)
    return Experiment(
        problem,
        method,
        compressor="topk:0.3" if name == "docom" else "none",
        batch_size=2,
        conditions={"clock": clock},
        **more,
    ).begin()


@pytest.mark.parametrize("name", ["docom", "allreduce"])
def test_a_resumed_clock_is_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    straight, first, second = (begun(name) for _ in range(3))

    def advance(training: Training, upto: int) -> None:
        train(
            training,
            12,
            lambda x: measure(training.oracle.problem, x),
            2,
            lambda r: False,
            after_step=lambda now: now.step >= upto,
        )

    advance(straight, 12)
    advance(first, 5)
    checkpoint.save(first, tmp_path, {})
    checkpoint.restore(second, tmp_path, {})
    advance(second, 12)
    assert straight.timeline is not None
    assert second.timeline is not None
    assert second.timeline.dump() == straight.timeline.dump()
    assert [record["clock"] for record in first.records + second.records] == [r["clock"] for r in straight.records]


def test_a_damaged_clock_is_not_believed(tmp_path: Path) -> None:
    one = begun("docom")
    one.take_step()
    assert one.timeline is not None
    for change in ({"now": [0.0]}, {"lanes": {}}, {"draws": None}):
        with pytest.raises((ValueError, LookupError, TypeError)):
            begun("docom").timeline.load(one.timeline.dump() | change)  # type: ignore[union-attr]


def test_text_mapping_and_object_are_the_same() -> None:
    text = "step=200ms,latency=50ms,up=10mbit,down=10mbit/s,slow=3:10/5:2,spread=exponential,links=0-1:1mbit:200ms"
    mapping = {
        "step": 0.2, "latency": "50ms", "up": "10mbit", "down": 1e7, "slow": {3: 10, 5: 2}, "spread": "exponential",
        "links": {"1-0": {"rate": 1e6, "latency": 0.2}},
    }  # fmt: skip
    clock = parse(text)
    assert clock is not None
    assert clock == parse(mapping) == parse(clock) == parse(clock.to_dict())
    assert clock.step == 0.2
    assert parse("step=0.1/0.2,outages=1@1e-05-2s").to_dict() == {"step": [0.1, 0.2], "outages": ["1@1e-05-2.0"]}  # type: ignore[union-attr]
    assert parse(Clock(outages=["1@1e-05-2s"]).to_dict()) == Clock(outages=["1@1e-05-2s"])


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ("step", "an example is step=0.2"),
        ("stepp=0.2", "did you mean 'step'"),
        ("step=-1", "number >= 0"),
        ("step=fast", "units us, ms, s"),
        ("latency=50mbit", "latency is a number"),
        ("up=0", "up is a number > 0"),
        ("up=nan", "up is a number > 0"),
        ("slow=3", "slow=3:10"),
        ("slow=a:3", "names agents"),
        ("spread=normal", "lognormal"),
        ("spread=exponential:2", "no width"),
        ("links=3:1mbit", "pairs of agents"),
        ("outages=3@20-10", "to a later one"),
        ("outages=3", "3@10-20"),
        ("overhead=x", "whole number"),
        ("seed=-1", "whole number"),
        ({"trace": [[1, 2], [3]]}, "same number of times"),
        ({"trace": []}, "array of times"),
        ({"trace": [0, 0]}, "only zeros"),
        ({"links": {"0-1": {"speed": 3}}}, "latency, a rate"),
        ({"slow": 3}, "an example"),
        ({"overhead": 1.5}, "number of bytes"),
    ],
)
def test_what_cannot_be_understood_is_refused(given_: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(given_)


@pytest.mark.parametrize(
    ("clock", "says"),
    [
        ("slow=8:10", "there is no agent 8"),
        ("step=0.1/0.2", "2 numbers, but there are 8 agents"),
        ("links=0-9:1mbit", "no agent 9"),
        ("outages=9@1-2", "no agent 9"),
        ({"trace": [[1.0, 2.0]]}, "a line of the trace has 2"),
    ],
)
def test_a_clock_must_fit_the_agents(clock: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run(docom.DSGD(lr=0.05), clock)


def test_processes_have_a_clock_of_their_own() -> None:
    with pytest.raises(ValueError, match="leave out clock"):
        Experiment(least_squares(), docom.DSGD(lr=0.1), conditions={"clock": "step=1"}, processes=2)
    with pytest.raises(TypeError, match=r"docom\.Clock"):
        docom.Conditions(clock=3)  # type: ignore[arg-type]


def test_seconds_of_the_clock_stop_a_run_and_are_an_axis() -> None:
    found = run(docom.DSGD(lr=0.05), "step=1", steps=50, until="clock>=10")
    assert times(found)[-1] == 10
    axis = found.plot(against="clock", measures=["loss_worst"]).axes[0]
    assert "seconds of the clock" in axis.get_xlabel()


def test_a_file_and_the_command_line_give_a_clock(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "algorithm: dsgd\nhyper: {lr: 0.05}\nproblem: {name: leaf-synthetic}\nagents: 4\nsteps: 4\neval_every: 2\n"
        "conditions:\n  clock: {step: 0.5, slow: {1: 2}}\n"
    )
    runner = CliRunner()
    done = runner.invoke(app, ["run", str(file), "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    records = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert '"clock": 5.0' in records[-1]
    changed = runner.invoke(app, ["run", str(file), "--clock", "step=0.25", "--out", str(tmp_path / "b")])
    assert changed.exit_code == 0, changed.output
    assert '"clock": 1.25' in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()[-1]
    without = runner.invoke(app, ["run", str(file), "--clock", "none", "--out", str(tmp_path / "c")])
    assert without.exit_code == 0, without.output
    assert '"clock"' not in (tmp_path / "c" / "metrics.jsonl").read_text()
    wrong = runner.invoke(app, ["run", str(file), "--clock", "steps=0.25", "--out", str(tmp_path / "d")])
    assert "did you mean 'step'" in str(wrong.exception)
    with pytest.raises(ValueError, match="conditions is a mapping"):
        from_dict({"algorithm": "dsgd", "hyper": {"lr": 1}, "problem": {"name": "leaf-synthetic"}, "conditions": "x"})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_what_has_arrived_is_the_same_compiled_and_plain(receivers: int, messages: int, seed: int) -> None:
    """To the bit; of some messages the length is zero, and marks lie on begins and ends."""
    draw = np.random.default_rng(seed)
    begins, amounts = draw.normal(size=(2, receivers, messages)).round(1)
    lengths = np.maximum(0, draw.normal(size=(receivers, messages)))
    marks = np.concatenate([begins, begins + lengths, draw.normal(size=(receivers, 3))], axis=1)
    plain, compiled = np.zeros_like(marks), np.zeros_like(marks)
    arriving._plain(marks, begins, lengths, amounts, plain)
    arriving._compiled()(marks, begins, lengths, amounts, compiled)
    assert np.array_equal(plain, compiled)
    late = arriving.arrived(marks + 1e6, begins, lengths, amounts)
    np.testing.assert_allclose(late, np.broadcast_to(amounts.sum(axis=1, keepdims=True), late.shape), atol=1e-12)
