"""Partitions: disjoint and complete for whatever is asked, seeded, and each with its own property."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docom.data import DataError, read_mnist
from docom.data.partitions import Parts, by_group, by_label, by_sizes, dirichlet, iid, sorted_blocks

MNIST = Path(__file__).parents[2] / "shared/data/mnist"

seeds = st.integers(0, 2**40)
label_lists = st.lists(st.integers(0, 6), min_size=1, max_size=80)


def assert_partition(parts: Parts, count: int) -> None:
    """Every sample to exactly one agent, every agent some, indices increasing."""
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)


def same(one: Parts, other: Parts) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@given(st.data(), st.integers(1, 200), seeds)
def test_iid(data: st.DataObject, count: int, seed: int) -> None:
    agents = data.draw(st.integers(1, count))
    parts = iid(count, agents, seed)
    assert_partition(parts, count)
    assert len(parts) == agents
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert same(parts, iid(count, agents, seed))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), seeds)
def test_by_sizes(sizes: list[int], seed: int) -> None:
    parts = by_sizes(sum(sizes), sizes, seed)
    assert_partition(parts, sum(sizes))
    assert [len(part) for part in parts] == sizes
    assert same(parts, by_sizes(sum(sizes), sizes, seed))


@given(st.integers(1, 10), st.integers(1, 10), seeds)
def test_equal_sizes_are_iid(agents: int, each: int, seed: int) -> None:
    assert same(by_sizes(agents * each, [each] * agents, seed), iid(agents * each, agents, seed))


@given(label_lists)
def test_by_group(groups: list[int]) -> None:
    parts = by_group(groups)
    assert_partition(parts, len(groups))
    array = np.array(groups)
    assert [np.unique(array[part]).tolist() for part in parts] == [[value] for value in sorted(set(groups))]


@given(st.lists(st.sampled_from(["f0001_41", "f0000_14", "f0212_05"]), min_size=1))
def test_by_group_takes_names(writers: list[str]) -> None:
    assert same(by_group(writers), by_group(np.unique(writers, return_inverse=True)[1]))


@given(label_lists, seeds)
def test_one_class_an_agent(labels: list[int], seed: int) -> None:
    assert same(by_label(labels, len(set(labels)), seed=seed), by_group(labels))


@given(st.data(), st.integers(1, 6), seeds)
def test_by_label_gives_exactly_so_many_classes(data: st.DataObject, classes: int, seed: int) -> None:
    each = data.draw(st.integers(1, classes))
    agents = data.draw(st.integers(-(-classes // each), 12))
    sizes = data.draw(st.lists(st.integers(12 * each, 80), min_size=classes, max_size=classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), sizes))
    parts = by_label(labels, agents, each, seed)
    assert_partition(parts, len(labels))
    assert [len(np.unique(labels[part])) for part in parts] == [each] * agents
    for label in range(classes):
        held = [np.sum(labels[part] == label) for part in parts]
        held = [count for count in held if count]
        assert max(held) - min(held) <= 1
    assert same(parts, by_label(labels, agents, each, seed))


@given(st.data(), label_lists)
def test_sorted_blocks(data: st.DataObject, labels: list[int]) -> None:
    agents = data.draw(st.integers(1, len(labels)))
    parts = sorted_blocks(labels, agents)
    assert_partition(parts, len(labels))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    in_order = np.concatenate([np.sort(np.array(labels)[part]) for part in parts])
    np.testing.assert_array_equal(in_order, np.sort(labels))


@given(st.data(), label_lists, st.floats(1e-6, 1e6), seeds)
def test_dirichlet(data: st.DataObject, labels: list[int], alpha: float, seed: int) -> None:
    agents = data.draw(st.integers(1, len(labels)))
    least = data.draw(st.integers(1, len(labels) // agents))
    parts = dirichlet(labels, agents, alpha, seed, least)
    assert_partition(parts, len(labels))
    assert len(parts) == agents
    assert min(map(len, parts)) >= least
    assert same(parts, dirichlet(labels, agents, alpha, seed, least))


def test_dirichlet_goes_from_one_class_to_equal_shares() -> None:
    labels = np.repeat(np.arange(10), 1000)

    def shares(alpha: float) -> np.ndarray:
        parts = dirichlet(labels, 10, alpha, seed=1)
        return np.stack([np.bincount(labels[part], minlength=10) for part in parts]) / 1000

    assert np.abs(shares(1e6) - 0.1).max() < 0.005
    # With alpha tiny a class goes to one agent whole, but for the single samples that fill up empty agents.
    assert (shares(1e-6).max(axis=0) >= 0.99).all()
    # For Dirichlet(alpha) on n agents the variance of a share is (1/n)(1 - 1/n) / (n alpha + 1).
    many = dirichlet(np.repeat(np.arange(400), 500), 10, 0.5, seed=2)
    held = np.stack([np.bincount(part // 500, minlength=400) for part in many]) / 500
    assert held.var(axis=1).mean() == pytest.approx(0.1 * 0.9 / 6, rel=0.1)


def test_other_seeds_give_other_partitions() -> None:
    labels = np.arange(100) % 2
    for make in (
        lambda seed: iid(100, 5, seed),
        lambda seed: by_sizes(100, [30, 70], seed),
        lambda seed: dirichlet(labels, 5, 1.0, seed),
        lambda seed: by_label(labels, 4, 1, seed),
    ):
        assert not same(make(0), make(1))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: iid(3, 4), r"agents must lie in 1 \.\. 3"),
        (lambda: iid(3, 0), "agents=0"),
        (lambda: iid(3, 2, -1), "seed"),
        (lambda: by_sizes(10, [3, 3]), "add up to 6, but there are 10"),
        (lambda: by_sizes(3, [3, 0]), "positive"),
        (lambda: by_sizes(0, []), "positive"),
        (lambda: by_label([0, 1, 2], 1), "cannot hold 3 classes; raise classes_per_agent to 3"),
        (lambda: by_label([0, 1], 2, 3), r"classes_per_agent must lie in 1 \.\. 2"),
        (lambda: by_label([0, 1, 1, 1], 4), "class 0 has 1 samples for 2 agents"),
        (lambda: by_label([], 1), r"shape \(0,\)"),
        (lambda: by_group([[0], [1]]), r"shape \(2, 1\)"),
        (lambda: dirichlet([0, 1], 2, 0.0), "alpha"),
        (lambda: dirichlet([0, 1], 2, float("nan")), "alpha"),
        (lambda: dirichlet([0, 1, 1], 2, 1.0, 0, 2), r"min_size must lie in 1 \.\. 1"),
        (lambda: sorted_blocks([0, 1], 3), "agents=3"),
    ],
)
def test_impossible_requests(request_, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=message):
        request_()


def test_mnist_both_ways() -> None:
    if not MNIST.exists():
        pytest.skip("absent: MNIST (the four IDX files)")
    (_, labels), _ = read_mnist(MNIST)
    one_class = by_label(labels, 10)
    assert [len(part) for part in one_class] == np.bincount(labels).tolist()
    assert all((labels[part] == agent).all() for agent, part in enumerate(one_class))
    blocks = sorted_blocks(labels, 10)
    assert [len(part) for part in blocks] == [6000] * 10
    # Block 6 reaches from the last 17 fives over all sixes to the first 65 sevens.
    assert [len(np.unique(labels[part])) for part in blocks] == [2, 1, 2, 2, 2, 2, 3, 1, 2, 2]
