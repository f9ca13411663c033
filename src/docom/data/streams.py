"""Seeded random streams for partitioning data."""

from __future__ import annotations

import numpy as np

from docom.data.files import DataError


def stream(seed: int, *keys: int) -> np.random.RandomState:
    """A generator for (seed, keys): equal arguments draw equal numbers, in every release of numpy.

    numpy freezes what `RandomState` draws, whereas `Generator` may change between releases (NEP 19); a saved
    configuration must always give the same split.
    """
    if seed < 0:
        raise DataError(f"seed must be an integer from 0, got {seed}")
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed, spawn_key=keys)))
