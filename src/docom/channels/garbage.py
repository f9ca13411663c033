"""What bad agents send in place of their variable, for trials of robust mixing."""

from __future__ import annotations

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

    def sent(self, x: Tensor, round: int) -> Tensor:
        """The rows that all agents send in this round."""
        if not self.kinds:
            return x
        rows = x.clone()
        for agent, (name, size) in self.kinds.items():
            if name == "noise":
                rows[agent] = self._noise(size, round, x, agent)
            elif name == "flip":
                rows[agent] = -size * x[agent]
        return rows

    def _noise(self, length: float, round: int, x: Tensor, agent: int) -> Tensor:
        """A random direction of this length."""
        draws = rng.uniform(self.key, torch.tensor([agent]), round, x.shape[1])[0] - 0.5
        noise: Tensor = (length / draws.norm() * draws).to(x)
        return noise
