"""Measures over all agents of a run, for a process that holds only some of them.

Every measure of a run is taken over all its agents: a mean, a sum of squares, the worst agent. In a run of several processes
each has the rows of its own agents. `Everyone` is what `Diagnostics` needs from the other processes;
`docom.distribute.all_agents` makes one, `Alone` is for a process with all agents. Means are summed and rows are passed in agent
order, and single numbers are gathered agent by agent, so that the result does not depend on which process holds which agents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Everyone(Protocol):
    """The processes of a run. All of them call the same methods in the same order."""

    def words(self, text: str) -> list[str]:
        """The text that every process gives, by rank."""

    def mean(self, x: Tensor, n: int) -> Tensor:
        """The average ``[d]`` of the rows of all n agents; ``x`` are the local ones."""

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """The rows of all n agents in agent order: for each process, its agents and their rows."""


class Alone:
    """All agents are in this process."""

    def words(self, text: str) -> list[str]:
        """See `Everyone.words`."""
        return [text]

    def mean(self, x: Tensor, n: int) -> Tensor:
        """See `Everyone.mean`."""
        total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        for row in x:
            total += row
        return (total / n).to(x)

    def rows_of_all(self, x: Tensor, n: int) -> Iterator[tuple[Sequence[int], Tensor]]:
        """See `Everyone.rows_of_all`."""
        yield range(n), x


def gathered(everyone: Everyone, local: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Numbers of all agents by name, in agent order, from those of the local agents; all names in one message."""
    said = everyone.words(json.dumps({name: numbers.tolist() for name, numbers in local.items()}))
    parts: list[dict[str, list[float]]] = [json.loads(text) for text in said]
    return {name: [number for part in parts for number in part[name]] for name in local}
