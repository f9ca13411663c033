"""Step sizes over time: values, spellings and refusals."""

from __future__ import annotations

import doctest
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docom import schedules
from docom.schedules import SCHEDULES, Constant, InverseCubeRoot, InverseSqrt, Schedule, Steps, parse

values = st.floats(1e-6, 10)
times = st.integers(0, 10**7)
step_schedules = st.builds(Steps, values, st.lists(st.integers(0, 1000), max_size=4).map(tuple), st.floats(0.01, 1))
all_schedules = (
    st.builds(Constant, values) | step_schedules | st.builds(InverseSqrt, values) | st.builds(InverseCubeRoot, values)
)


# --- values -------------------------------------------------------------------------------------------------


@given(values, times)
def test_values_are_those_of_the_formulas(value: float, t: int) -> None:
    assert Constant(value)(t) == value
    assert InverseSqrt(value)(t) == pytest.approx(value / math.sqrt(t + 1), rel=1e-14)
    assert InverseCubeRoot(value)(t) ** 3 * (t + 1) == pytest.approx(value**3, rel=1e-13)


@given(step_schedules, st.integers(0, 1100))
def test_steps_scale_once_at_each_of_their_steps(schedule: Steps, t: int) -> None:
    expected = schedule.value
    for step in schedule.at:
        if t >= step:
            expected *= schedule.factor
    assert schedule(t) == pytest.approx(expected, rel=1e-13)


def test_the_papers_femnist_schedule() -> None:
    schedule = Steps(0.01, at=(4000, 40_000, 80_000), factor=0.1)
    for t, expected in (
        (0, 1e-2),
        (3999, 1e-2),
        (4000, 1e-3),
        (39_999, 1e-3),
        (40_000, 1e-4),
        (80_000, 1e-5),
        (10**6, 1e-5),
    ):
        assert schedule(t) == pytest.approx(expected, rel=1e-13)


@given(all_schedules, times, st.integers(1, 10**6))
def test_no_schedule_ever_grows_or_reaches_zero(schedule: Schedule, t: int, later: int) -> None:
    assert isinstance(schedule(t), float)
    assert 0 < schedule(t + later) <= schedule(t) <= schedule.value


@given(all_schedules)
def test_a_schedule_starts_at_its_value(schedule: Schedule) -> None:
    if not (isinstance(schedule, Steps) and 0 in schedule.at):
        assert schedule(0) == schedule.value


def test_schedules_are_fixed_values() -> None:
    assert Steps(0.1, (3,)) == Steps(0.1, (3,))
    assert Constant(0.1) != InverseSqrt(0.1)
    assert len({Constant(0.1), Constant(0.1), InverseSqrt(0.1)}) == 2
    with pytest.raises(FrozenInstanceError):
        Constant(0.1).value = 0.2  # type: ignore[misc]


# --- spellings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (0.1, Constant(0.1)),
        (1, Constant(1.0)),
        ("0.1", Constant(0.1)),
        (" 1e-3 ", Constant(1e-3)),
        ("constant:0.1", Constant(0.1)),
        ("inverse-sqrt:0.1", InverseSqrt(0.1)),
        ("inverse-cube-root: 0.1", InverseCubeRoot(0.1)),
        ("steps:0.01,factor=0.1,at=4000/40000/80000", Steps(0.01, (4000, 40_000, 80_000), 0.1)),
        ("steps:0.01,at=10", Steps(0.01, (10,), 0.1)),
        ("steps:0.01,factor=0.5", Steps(0.01, (), 0.5)),
        ("steps:0.01", Steps(0.01)),
    ],
)
def test_spellings(spec: str | float, expected: Schedule) -> None:
    assert parse(spec) == expected
    assert type(parse(spec)) is type(expected)


@given(all_schedules)
def test_a_schedule_is_its_own_spelling(schedule: Schedule) -> None:
    assert parse(schedule) is schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_registered_schedule_is_parsed_by_its_name(name: str) -> None:
    assert parse(f"{name}:0.25") == SCHEDULES[name](0.25)


@given(values)
def test_numbers_survive_their_spelling(value: float) -> None:
    assert parse(repr(value)) == parse(value) == Constant(value)
    assert parse(f"inverse-sqrt:{value!r}") == InverseSqrt(value)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("inverse-sqr:0.1", "inverse-sqrt"),
        ("step:0.1", "steps"),
        ("const:0.1", "constant"),
        ("cube-root:0.1", "inverse-cube-root"),
    ],
)
def test_misspellings_name_the_nearest(spec: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown schedule .*did you mean {nearest!r}.*Known: constant, steps"):
        parse(spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "unknown schedule"),
        ("inverse-sqrt", "write it as 'inverse-sqrt:0.1'"),
        ("inverse-sqrt:", "write it as"),
        ("inverse-sqrt:abc", "write it as"),
        ("inverse-sqrt:0.1,0.2", "write it as"),
        ("inverse-sqrt:0.1,at=3", "write it as"),
        ("constant:0.1,factor=2", "write it as"),
        ("steps", "write it as 'steps:0.01,factor=0.1,at=4000/40000/80000'"),
        ("steps:0.01,at=1/x", "write it as"),
        ("steps:0.01,at=1.5", "write it as"),
        ("steps:0.01,factor=half", "write it as"),
        ("steps:0.01,when=3", "write it as"),
        ("steps:0.01,factor=2", "0 < factor <= 1, got 2"),
        ("steps:0.01,factor=0", "0 < factor <= 1"),
        ("steps:0.01,factor=nan", "0 < factor <= 1"),
        ("steps:0.01,at=-3", "steps >= 0"),
    ],
)
def test_refusals(spec: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(spec)


@pytest.mark.parametrize("spec", [None, True, [0.1], {"lr": 0.1}, Constant])
def test_only_numbers_names_and_schedules_are_taken(spec: Any) -> None:
    with pytest.raises(TypeError, match="a step size is a number, a schedule, or a name"):
        parse(spec)


def test_the_examples_in_the_documentation_run() -> None:
    tried = doctest.testmod(schedules)
    assert tried.attempted > 0
    assert tried.failed == 0
