"""What processes say beside variables: heard by all, in time, and agreed whatever the order in which it is heard."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import networkx as nx
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from docom.team.control import LONGEST, Control, StoreControl
from docom.team.meetings import Meetings
from docom.transports import RanksLost

RUN = bytes(range(16))
KEYS = f"docom/{RUN.hex()}/control/"

# --- meetings: processes in lock step with their neighbours, under every schedule -------------------------------


class Walker:
    """A process that takes steps, hears proposals late, and waits until its own are heard."""

    def __init__(self, distance: int) -> None:
        self.meetings, self.step = Meetings(distance), 0
        self.inbox: list[tuple[int, dict[str, int]]] = []
        self.holding: set[int] = set()
        self.met: list[int] = []
        self.meeting = False
        self.wishes: list[int] = []


def walk(graph: nx.Graph, wishes: dict[int, list[int]], draw: Any, steps: int) -> list[Walker]:
    """All processes for so many steps; what happens next is drawn each time."""
    walkers = [Walker(nx.diameter(graph)) for _ in graph]
    for number, some in wishes.items():
        walkers[number].wishes = sorted(some)

    def may_step(number: int) -> bool:
        me = walkers[number]
        if me.step >= steps or me.holding or me.meeting:
            return False
        return all(walkers[j].step >= me.step and not stopped(j, me.step) for j in graph[number])

    def stopped(number: int, step: int) -> bool:
        """Whether it has not begun the step after this one."""
        return walkers[number].step == step and (bool(walkers[number].holding) or walkers[number].meeting)

    def take_step(number: int) -> None:
        me = walkers[number]
        me.step += 1
        propose(number)
        arrive(number)

    def propose(number: int) -> None:
        me = walkers[number]
        if me.wishes and me.wishes[0] <= me.step and (proposal := me.meetings.proposal(me.step)):
            me.holding = set(graph)
            for other in walkers:
                other.inbox.append((number, proposal))

    def arrive(number: int) -> None:
        me = walkers[number]
        if not me.holding and me.meetings.now(me.step):
            me.meeting = True
            me.met.append(me.step)
            me.wishes = [wish for wish in me.wishes if wish > me.step]

    def hear(number: int, which: int) -> None:
        sender, proposal = walkers[number].inbox.pop(which)
        walkers[number].meetings.heard(**proposal)
        walkers[sender].holding.discard(number)
        if not walkers[sender].holding:
            arrive(sender)

    while True:
        if all(walker.meeting for walker in walkers):
            for walker in walkers:
                walker.meeting = False
        events = [(take_step, (number,)) for number in graph if may_step(number)]
        events += [(hear, (number, which)) for number in graph for which in range(len(walkers[number].inbox))]
        if not events:
            return walkers
        what, arguments = events[draw(len(events))]
        what(*arguments)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_all_processes_meet_after_the_same_steps(data: Any) -> None:
    """Whichever of them wish to, whenever, however fast each is, and however late it hears of it."""
    n = data.draw(st.integers(2, 6))
    graph = data.draw(
        st.sampled_from([nx.path_graph(n), nx.cycle_graph(n), nx.complete_graph(n), nx.star_graph(n - 1)])
    )
    wishes = data.draw(st.dictionaries(st.integers(0, n - 1), st.lists(st.integers(1, 12), max_size=3)))
    rng = data.draw(st.randoms(use_true_random=False))
    walkers = walk(graph, wishes, rng.randrange, steps=30)
    assert {walker.step for walker in walkers} == {30}, "no process waits without end"
    assert all(walker.met == walkers[0].met for walker in walkers)
    distance = nx.diameter(graph)
    # Its own proposal is for wish + distance + 1. It makes none if it knows of a meeting, which a process that is ahead has
    # proposed: by distance - 1 steps at most, so for wish + 2 distance at the latest.
    for wish in (wish for some in wishes.values() for wish in some):
        assert any(wish <= met <= wish + 2 * distance for met in walkers[0].met), "and every wish comes true soon"
    assert len(walkers[0].met) <= sum(map(len, wishes.values()))


@pytest.mark.parametrize("distance", [1, 2, 5])
def test_the_latest_meeting_that_a_wish_joins(distance: int) -> None:
    """The other end of the network is as far ahead as it can be, and its proposal was heard before the wish came up."""
    ahead, behind, wish = Meetings(distance), Meetings(distance), 7
    proposal = ahead.proposal(wish + distance - 1)
    assert proposal is not None
    behind.heard(**proposal)
    assert behind.proposal(wish) is None
    assert [step for step in range(wish, wish + 3 * distance) if behind.now(step)] == [wish + 2 * distance]


def test_a_meeting_that_was_missed_is_an_error() -> None:
    meetings = Meetings(1)
    meetings.heard(asked=1, at=3)
    assert not meetings.now(2)
    with pytest.raises(RuntimeError, match="step 4 is done, but all processes were to meet after step 3"):
        meetings.now(4)


# --- over a store ------------------------------------------------------------------------------------------


class Post:
    """What control asks of a post."""

    def __init__(self, rank: int, world: int, peer_timeout: float = 20) -> None:
        self.rank, self.world, self.peer_timeout, self.leave_by = rank, world, peer_timeout, float("inf")


@pytest.fixture
def store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))  # type: ignore[attr-defined]


def controls(store: Any, world: int, **more: Any) -> list[StoreControl]:
    return [StoreControl(store.clone(), Post(rank, world, **more)) for rank in range(world)]  # type: ignore[arg-type]


def leave(ends: list[StoreControl]) -> None:
    leaving = [threading.Thread(target=end.close) for end in ends]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()


def test_all_have_heard_when_tell_returns_and_in_one_order(store: Any) -> None:
    ends = controls(store, 3)
    heard: list[list[tuple[int, int]]] = [[] for _ in ends]
    for end, list_ in zip(ends, heard, strict=True):
        end.on("note", lambda by, number, to=list_: to.append((by, number)))
        end.open(RUN)

    def talk(rank: int) -> None:
        for number in range(5):
            ends[rank].tell("note", by=rank, number=number)
            assert all((rank, number) in list_ for list_ in heard)

    talkers = [threading.Thread(target=talk, args=(rank,)) for rank in (0, 2)]
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join()
    assert heard[0] == heard[1] == heard[2]
    assert len(heard[0]) == 10
    leave(ends)
    assert store.num_keys() <= 2, "messages that all have heard are removed"


def test_who_opens_late_misses_nothing(store: Any) -> None:
    first, late = controls(store, 2)
    heard = threading.Event()
    late.on("note", heard.set)
    first.open(RUN)
    telling = threading.Thread(target=first.tell, args=("note",))
    telling.start()
    late.open(RUN)
    telling.join(20)
    assert heard.is_set()
    leave([first, late])


def test_who_does_not_hear_is_named(store: Any) -> None:
    ends = controls(store, 3, peer_timeout=0.3)
    ends[0].open(RUN)
    ends[1].open(RUN)
    with pytest.raises(RanksLost, match="rank 2: no message"):
        ends[0].tell("note")


def test_what_is_not_understood_is_passed_over(store: Any) -> None:
    one, other = ends = controls(store, 2)
    heard: list[int] = []
    one.on("note", lambda number: heard.append(number))
    for end in ends:
        end.open(RUN)
    for text in ("no JSON", "[1, 2, 3]", '["note", {"colour": 1}]', "{}", '["other", {}]'):
        store.set(f"{KEYS}message/{store.add(f'{KEYS}count', 1)}", text)
    other.tell("note", number=7)
    assert heard == [7]
    leave(ends)


def test_control_messages_are_short(store: Any) -> None:
    with pytest.raises(ValueError, match=f"at most {LONGEST} bytes"):
        controls(store, 1)[0].tell("note", text="x" * LONGEST)
    assert issubclass(StoreControl, Control)
