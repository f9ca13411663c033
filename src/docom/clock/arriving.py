"""How much of several messages has come in by some moments; the innermost loop of the clock."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from docom.rng.available import jit, numba_is_available

if TYPE_CHECKING:
    from collections.abc import Callable

    from docom.clock.compute import Numbers


def arrived(marks: Numbers, begins: Numbers, lengths: Numbers, amounts: Numbers) -> Numbers:
    """How much has come in at every receiver just before each of its marks.

    A row for every receiver; its messages come in evenly from their begins on, and what has no length at once, at its begin.
    """
    total = np.zeros_like(marks)
    if numba_is_available():
        _compiled()(marks, begins, lengths, amounts, total)
    else:
        _plain(marks, begins, lengths, amounts, total)
    return total


def _plain(marks: Numbers, begins: Numbers, lengths: Numbers, amounts: Numbers, total: Numbers) -> None:
    """What defines the result: one message to every receiver after the other."""
    at_once = lengths <= 0
    divisors = np.where(at_once, 1.0, lengths)
    for message in range(begins.shape[1]):
        one = slice(message, message + 1)
        since = marks - begins[:, one]
        total += np.where(at_once[:, one], since > 0, np.clip(since / divisors[:, one], 0, 1)) * amounts[:, one]


@cache
def _compiled() -> Callable[..., None]:
    """The same, compiled when it is first needed."""

    @jit()
    def kernel(marks: Numbers, begins: Numbers, lengths: Numbers, amounts: Numbers, total: Numbers) -> None:
        for receiver in range(marks.shape[0]):
            for message in range(begins.shape[1]):
                begin, length, amount = (
                    begins[receiver, message],
                    lengths[receiver, message],
                    amounts[receiver, message],
                )
                for mark in range(marks.shape[1]):
                    since = marks[receiver, mark] - begin
                    if length <= 0:
                        share = 1.0 if since > 0 else 0.0
                    else:
                        share = min(max(since / length, 0.0), 1.0)
                    total[receiver, mark] += share * amount

    return kernel
