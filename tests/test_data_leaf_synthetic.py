"""LEAF's synthetic data: its own test vectors, a literal reference, and the paper's counts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from docom.data import DataError, leaf_synthetic

VECTORS = Path(__file__).parents[2] / "shared/data/synthetic_leaf/test_vectors.json"

PAPER_COUNTS = [470, 403, 91, 84, 79, 51, 51, 38, 31, 25, 24, 19, 14, 10, 9, 6, 6, 5, 5, 4, 4, 4, 4, 3, 3]
COUNTS = [86, 33, 52, 6, 11, 784, 11, 153, 7, 672, 5, 43, 40]
COUNTS += [133, 7, 8, 8, 85, 9, 141, 64, 24, 15, 18, 9]
FIRST_FEATURES = {  # of the first sample of an agent, from LEAF's own output
    0: [0.6986411704466852, 1.0473807208920984, 0.7318908295372902, 1.1491821641984592],
    9: [0.627105628428944, 0.12473679759287842, -0.39962977029162255, -0.4156903475339545],
    24: [-1.1279414414894762, -1.0918195789951686, -0.7820018283485766, -2.2759460638431857],
}
FEATURE_SUMS = {0: 76672.0556725033, 5: -205032.5647302612, 24: -3574.7371258145495}
LABEL_DIGEST = "16667f1a3d2644ab417fd5002b5c01f0b3164337fe2a812c6e8c8c3fa8b9c70c"


@pytest.fixture(scope="module")
def samples() -> list[leaf_synthetic.Sample]:
    return leaf_synthetic.generate()


def digest(samples: list[leaf_synthetic.Sample]) -> str:
    return hashlib.sha256(np.concatenate([y for _, y in samples]).astype(np.uint8).tobytes()).hexdigest()


def test_defaults_are_leafs_own_numbers(samples: list[leaf_synthetic.Sample]) -> None:
    assert [len(y) for _, y in samples] == COUNTS
    assert np.bincount(np.concatenate([y for _, y in samples])).tolist() == [888, 109, 300, 761, 366]
    assert digest(samples) == LABEL_DIGEST
    for agent, features in FIRST_FEATURES.items():
        np.testing.assert_allclose(samples[agent][0][0, :4], features, rtol=0, atol=1e-14)
    for agent, total in FEATURE_SUMS.items():
        assert samples[agent][0].sum() == pytest.approx(total, rel=1e-12)
    assert all(x.dtype == np.float64 and x.shape == (len(y), 1000) and y.dtype == np.int64 for x, y in samples)


def test_all_test_vectors(samples: list[leaf_synthetic.Sample]) -> None:
    if not VECTORS.exists():
        pytest.skip("absent: LEAF synthetic test vectors (synthetic_leaf/test_vectors.json)")
    vectors = json.loads(VECTORS.read_text())
    assert [len(y) for _, y in samples] == vectors["num_samples"]
    assert [np.bincount(y, minlength=5).tolist() for _, y in samples] == vectors["labels_per_agent"]
    first = np.stack([x[0, :6] for x, _ in samples])
    np.testing.assert_allclose(first, vectors["x_first_sample_first_6_features_per_agent"], rtol=0, atol=1e-14)
    np.testing.assert_allclose([x.sum() for x, _ in samples], vectors["x_sum_per_agent"], rtol=1e-12)
    assert digest(samples) == vectors["labels_sha256_uint8_in_agent_order"]


@pytest.mark.parametrize("clusters", [1, 3])
def test_equals_the_recipe_with_the_full_covariance(clusters: int) -> None:
    agents, classes, dimension, seed = 4, 3, 6, 11
    rng = np.random.RandomState(seed)
    counts = np.minimum(rng.lognormal(3, 2, agents).astype(int) + 5, 1000)
    rng = np.random.RandomState(seed)
    q = rng.normal(0, 1, (dimension + 1, classes, clusters))
    centres = [rng.normal(rng.normal(0, 1), 1, clusters) for _ in range(clusters)]
    generated = leaf_synthetic.generate(agents, classes, dimension, seed, clusters)
    for m, (x, y) in zip(counts, generated, strict=True):
        centre = centres[rng.choice(range(clusters), p=[1 / clusters] * clusters)]
        mean = rng.normal(rng.normal(0, 1), 1, dimension)
        expected = rng.multivariate_normal(mean, np.diag(np.arange(1.0, dimension + 1) ** -1.2), m)
        model = np.matmul(q, rng.normal(centre, 0.1))
        scores = np.c_[np.ones(m), expected] @ model + rng.normal(0, 0.1, (m, classes))
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(y, scores.argmax(axis=1))


def test_global_generator_is_left_alone() -> None:
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    first = leaf_synthetic.generate(3, 2, 4)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert before["state"]["pos"] == after["state"]["pos"]
    np.testing.assert_array_equal(before["state"]["key"], after["state"]["key"])
    for (x, y), (again_x, again_y) in zip(first, leaf_synthetic.generate(3, 2, 4), strict=True):
        np.testing.assert_array_equal(x, again_x)
        np.testing.assert_array_equal(y, again_y)


def test_sixty_per_cent_are_the_papers_counts(samples: list[leaf_synthetic.Sample]) -> None:
    train, test = leaf_synthetic.split(samples)
    assert sorted((len(y) for _, y in train), reverse=True) == PAPER_COUNTS
    for (x, y), parts in zip(samples, zip(train, test, strict=True), strict=True):
        # The two parts are the agent's samples, each once, with their own labels.
        whole = np.c_[np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])]
        assert whole.shape == (len(y), 1001)
        np.testing.assert_array_equal(np.unique(whole, axis=0), np.unique(np.c_[x, y], axis=0))


def test_split_follows_the_seed_and_nothing_else(samples: list[leaf_synthetic.Sample]) -> None:
    one, again, other = (leaf_synthetic.split(samples, 0.6, seed)[0][5][0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    fewer = leaf_synthetic.split(samples[:6], 0.6, 3)[0][5][0]
    np.testing.assert_array_equal(one, fewer)


def test_impossible_requests(samples: list[leaf_synthetic.Sample]) -> None:
    with pytest.raises(DataError, match="agents=0"):
        leaf_synthetic.generate(agents=0)
    with pytest.raises(DataError, match="seed"):
        leaf_synthetic.generate(seed=-1)
    with pytest.raises(DataError, match=r"fraction must lie in \(0, 1\], got 1.5"):
        leaf_synthetic.split(samples, 1.5)
    with pytest.raises(DataError, match=r"agent 10 has 5 samples.*raise fraction"):
        leaf_synthetic.split(samples, 0.17)
