"""What bad agents send in place of their variable, for trials of robust mixing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from docom import rng
from docom.conditions import Conditions
from docom.conditions.settings import garbage


class Garbage:
    """The rows that are sent: those of honest agents as they are, those of bad agents replaced.

    refused: agents whose messages hold no numbers; every receiver refuses them.
    """

    def __init__(self, conditions: Conditions, seed: int, variable: int) -> None:
        self.kinds = {agent: garbage(kind) for agent, kind in conditions.senders_of_garbage.items()}
        self.refused = [agent for agent, (name, _) in self.kinds.items() if name == "nan"]
        self.key = rng.Key(seed, rng.GARBAGE + 65536 * (variable + 1))

    def sent(self, x: Tensor, round: int, agents: Sequence[int] | None = None) -> Tensor:
        """The rows that agents send in this round; all of them, or these."""
        if not self.kinds:
            return x
        rows = x.clone()
        for row, agent in enumerate(range(len(x)) if agents is None else agents):
            name, size = self.kinds.get(agent, ("", 0.0))
            if name == "noise":
                rows[row] = self._noise(size, round, x, agent)
            elif name == "flip":
                rows[row] = -size * x[row]
        return rows

    def _noise(self, length: float, round: int, x: Tensor, agent: int) -> Tensor:
        """A random direction of this length."""
        draws = rng.uniform(self.key, torch.tensor([agent]), round, x.shape[1])[0] - 0.5
        noise: Tensor = (length / draws.norm() * draws).to(x)
        return noise
