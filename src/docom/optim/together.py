"""What the agents of a training loop do together besides gossip: start equal, average, decide. One agent per process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from docom.team import Team


def start_from_first(team: Team, tensors: Iterable[Tensor]) -> None:
    """Overwrite every tensor with that of agent 0, bit for bit."""
    for tensor in tensors:
        team.start_from_first(tensor.detach())


def mean(team: Team, tensor: Tensor) -> Tensor:
    """The average over all agents, as a new tensor with the same bits everywhere; of the own one where agents go on alone."""
    total = tensor.detach().clone()
    if team.world > 1 and not team.apart:
        team.add_up(total)
        total /= team.world
    return total


def true_anywhere(team: Team, flag: bool) -> bool:
    """Whether it is true at any agent."""
    return bool(mean(team, torch.tensor([float(flag)])).item() > 0)
