"""LEAF's synthetic classification data (Caldas et al., arXiv:1812.01097), generated here.

Agents share (nearly) one linear model Q u but not their features: the samples of agent i lie around a mean of
their own, and these means are far apart compared with the spread, so that most agents hold a single class. The
defaults are the paper's data: 25 agents, 5 classes, d = 1000; 60 % of the samples of each agent give the
paper's m_i = 470, 403, 91, ...

LEAF draws from numpy's legacy generator, whose stream is frozen. The same draws in the same order give LEAF's
own numbers to rounding, without its singular value decomposition of the diagonal covariance for each agent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from docom.data.files import DataError
from docom.data.streams import stream

Sample = tuple[NDArray[np.float64], NDArray[np.int64]]

_NOISE = 0.1  # of the agents' models and of the scores
_LEAST, _MOST = 5, 1000  # samples of an agent


def generate(
    agents: int = 25, classes: int = 5, dimension: int = 1000, seed: int = 931231, clusters: int = 1
) -> list[Sample]:
    """One (x float64 [m_i, dimension], y int64 [m_i] in 0 .. classes - 1) for each agent; x is not scaled.

    Args:
        agents: how many.
        classes: how many.
        dimension: of a feature vector.
        seed: LEAF's default is the paper's data; 0 to 2^32 - 1.
        clusters: of models, drawn with equal probability; LEAF's default is one.
    """
    sizes = {"agents": agents, "classes": classes, "dimension": dimension, "clusters": clusters}
    for name, size in sizes.items():
        if size < 1:
            raise DataError(f"{name} must be at least 1, got {name}={size}")
    if not 0 <= seed < 2**32:
        raise DataError(f"seed must be an integer in 0 .. 2^32 - 1, got {seed}")
    counts = sample_counts(agents, seed)
    # LEAF seeds a second time: the draws from here restart the stream from which the counts were drawn.
    rng = np.random.RandomState(seed)
    shared = rng.normal(0.0, 1.0, (dimension + 1, classes, clusters))  # Q; row 0 belongs to the bias
    centres = [rng.normal(rng.normal(0.0, 1.0), 1.0, clusters) for _ in range(clusters)]  # mu_c
    spread = np.arange(1.0, dimension + 1.0) ** -0.6  # square root of Sigma's diagonal j^-1.2
    return [_agent(rng, count, shared, centres, spread) for count in counts]


def sample_counts(agents: int, seed: int) -> list[int]:
    """The number of samples of each agent: log-normal, at least 5, at most 1000."""
    drawn = np.random.RandomState(seed).lognormal(3.0, 2.0, agents)
    return [min(int(value) + _LEAST, _MOST) for value in drawn]


def _agent(
    rng: np.random.RandomState,
    count: int,
    shared: NDArray[np.float64],
    centres: list[NDArray[np.float64]],
    spread: NDArray[np.float64],
) -> Sample:
    """Draw one agent's samples, in LEAF's order of draws, so that the numbers are LEAF's."""
    clusters = len(centres)
    cluster = int(rng.choice(clusters, p=np.full(clusters, 1 / clusters)))  # uses up a draw even with one cluster
    mean = rng.normal(rng.normal(0.0, 1.0), 1.0, len(spread))
    x = mean + rng.normal(0.0, 1.0, (count, len(spread))) * spread
    weights = shared @ rng.normal(centres[cluster], _NOISE, clusters)
    scores = weights[0] + x @ weights[1:]
    scores += rng.normal(0.0, _NOISE, scores.shape)
    return x, scores.argmax(axis=1).astype(np.int64)


def split(samples: Sequence[Sample], fraction: float = 0.6, seed: int = 0) -> tuple[list[Sample], list[Sample]]:
    """The m samples of each agent in two parts: train, the first int(fraction m) of a seeded permutation, and test.

    Args:
        samples: (x, y) of each agent.
        fraction: of the train part, in (0, 1].
        seed: of the permutations; that of an agent does not depend on the other agents.
    """
    if not 0 < fraction <= 1:
        raise DataError(f"fraction must lie in (0, 1], got {fraction}")
    train, test = [], []
    for agent, (x, y) in enumerate(samples):
        cut = int(fraction * len(y))
        if cut < 1:
            raise DataError(
                f"agent {agent} has {len(y)} samples, so fraction={fraction} leaves none to train on; raise fraction"
            )
        order = stream(seed, agent).permutation(len(y))
        train.append((x[order[:cut]], y[order[:cut]]))
        test.append((x[order[cut:]], y[order[cut:]]))
    return train, test
