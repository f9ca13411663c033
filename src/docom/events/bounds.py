"""What an agent of an asynchronous run accepts of another's message: nothing that holds no numbers, and not too much of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from docom.channels.clipping import ENOUGH, REMEMBERED
from docom.channels.garbage import Garbage
from docom.conditions import Conditions

Row = NDArray[Any]


class Bounds:
    """Twice the running median of the differences that an agent has met, in its last messages.

    An agent that has met fewer than ten takes nothing. lengths: of every agent's last differences, -1 where there are fewer.
    """

    def __init__(self, conditions: Conditions, seed: int, agents: int) -> None:
        self.garbage, self.clips = Garbage(conditions, seed, 0), conditions.clip is not None
        self.lengths, self.met = np.full((agents, REMEMBERED), -1.0), np.zeros(agents, dtype=np.int64)

    def sent(self, row: Row, agent: int, work: int) -> Row | None:
        """What an agent sends in place of a row; None for what holds no numbers."""
        if agent not in self.garbage.kinds:
            return row
        if agent in self.garbage.refused:
            return None
        found: Row = self.garbage.sent(torch.from_numpy(row).unsqueeze(0), work, [agent])[0].numpy()
        with np.errstate(over="ignore"):
            square = float(np.square(found, dtype=np.float64).sum())
        return found if square <= float(np.finfo(row.dtype).max) else None

    def share(self, difference: Row, *agents: int) -> float:
        """The share of a difference that all these agents accept; each keeps its length."""
        if not self.clips:
            return 1.0
        length = float(np.linalg.norm(difference.astype(np.float64)))
        most = min(self._bound(agent, length) for agent in agents)
        return most / length if length > most else 1.0

    def _bound(self, agent: int, length: float) -> float:
        self.lengths[agent, self.met[agent] % REMEMBERED] = length
        self.met[agent] += 1
        known = self.lengths[agent][self.lengths[agent] >= 0]
        return 2 * float(np.median(known)) if len(known) >= ENOUGH else 0.0

    def dump(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"lengths": self.lengths.tolist(), "met": self.met.tolist()}

    def load(self, found: dict[str, Any]) -> None:
        """Restore what `dump` returned."""
        lengths, met = np.asarray(found["lengths"], dtype=np.float64), np.asarray(found["met"], dtype=np.int64)
        if lengths.shape != self.lengths.shape or met.shape != self.met.shape or met.min() < 0:
            raise ValueError("bounds of other agents")
        self.lengths, self.met = lengths, met
