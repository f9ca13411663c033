"""What to take, of what was priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docom.planning.candidates import kind_of
from docom.planning.pricing import Price

BUSY = 0.9  # the share of the time that agents should compute


@dataclass(frozen=True)
class Advice:
    """A setting to take. whose: for which data. enough: whether agents compute for the share of time that was asked for."""

    whose: str
    price: Price
    enough: bool


def advise(prices: Sequence[Price], busy: float = BUSY) -> list[Advice]:
    """The setting that changes plain training least among those that compute for this share of the time.

    Least: the fewest local steps, then the largest messages, then the least time per batch. Where none computes that much, the
    one that computes most. One for sites whose data differ, which needs a method that still reaches the common optimum, and
    one for data that are alike.
    """
    found = []
    for whose, some in (
        ("data differ between the sites", [price for price in prices if _exact(price)]),
        ("data are alike", list(prices)),
    ):
        enough = [price for price in some if price.computing >= busy]
        if enough:
            best = min(enough, key=lambda price: (price.setting.local_steps, -price.payload, price.per_batch))
            found.append(Advice(whose, best, True))
        elif some:
            found.append(Advice(whose, max(some, key=lambda price: price.computing), False))
    return found


def _exact(price: Price) -> bool:
    """Whether a method reaches the common optimum where data differ; local steps need to be corrected for that."""
    kind = kind_of(price.setting.algorithm)
    return kind.facts.reaches_optimum and (price.setting.local_steps <= 1 or kind.corrects)
