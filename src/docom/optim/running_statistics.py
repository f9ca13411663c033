"""Running statistics of a model's norms, and the measures that need all agents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from docom.channels import UncompressedChannel
from docom.compressors import Identity
from docom.layout import Layout
from docom.optim.agent import Agent
from docom.optim.ranks import Ranks
from docom.optim.together import mean
from docom.team import Team
from docom.transports import Transport
from docom.weights import Network


class RunningStatistics:
    """Means and variances that BatchNorm and InstanceNorm layers keep, mixed with the neighbours' after every step.

    They are few and are sent uncompressed. Other buffers (masks, tables of positions) are constants and are not mixed.
    """

    def __init__(self, model: nn.Module | None, dtype: torch.dtype) -> None:
        modules = [] if model is None else model.modules()
        norms = [m for m in modules if isinstance(m, _NormBase) and m.running_mean is not None]
        self.tensors: list[Tensor] = [t for m in norms for t in (m.running_mean, m.running_var) if t is not None]
        self.dtype = dtype
        self.channel: UncompressedChannel | None = None

    def open(self, network: Network, transport: Transport, number: int) -> None:
        """Open a channel for them, after the ``number`` channels of the method."""
        if self.tensors:
            bound = Identity().bind(Layout.flat(sum(t.numel() for t in self.tensors)), self.dtype)
            self.channel = UncompressedChannel("running statistics", bound, network, transport)
            self.channel.number = number

    def mix(self) -> None:
        """One round of gossip."""
        if self.channel is not None:
            self._write(self.channel.mix(self._row()))

    def average(self, team: Team) -> None:
        """Set them to the average over all agents."""
        if self.tensors:
            self._write(mean(team, self._row()))

    @property
    def rounds(self) -> int:
        """How often they were mixed."""
        return 0 if self.channel is None else self.channel.rounds

    def resume(self, rounds: int) -> None:
        """Continue the count from ``rounds`` earlier rounds."""
        if self.channel is not None:
            self.channel.resume(rounds)

    @property
    def wire_bytes(self) -> int:
        """See `Channels.wire_bytes`."""
        return 0 if self.channel is None else self.rounds * self.channel.bytes_per_round

    @property
    def bits(self) -> float:
        """See `Channels.bits`."""
        return 0.0 if self.channel is None else self.rounds * self.channel.bits_per_round

    def _row(self) -> Tensor:
        return torch.cat([t.reshape(-1).to(self.dtype) for t in self.tensors]).unsqueeze(0)

    def _write(self, row: Tensor) -> None:
        for tensor, part in zip(self.tensors, row[0].split([t.numel() for t in self.tensors]), strict=True):
            tensor.copy_(part.reshape(tensor.shape))


def measured(agent: Agent, team: Team, ranks: Ranks) -> tuple[Tensor, dict[str, float]]:
    """The average model of all agents, and how far they are from agreement. Every process must call this.

    consensus_distance: sum over agents of ``|x_i - mean|``. tracking_error: the same of the trackers, which have the mean
    of the agents' gradient estimates: how far the directions of the steps are from the average gradient.
    """
    agent.check()
    agent.wake()
    rows = {"consensus_distance": agent.algorithm.iterate(agent.state)}
    if agent.algorithm.tracked is not None:
        rows["tracking_error"] = getattr(agent.state, agent.algorithm.tracked[0])
    means = {name: mean(team, row) for name, row in rows.items()}
    own = [torch.linalg.vector_norm((row - means[name]).to(torch.float64)) for name, row in rows.items()]
    total = mean(team, ranks.together(torch.stack(own))) * team.world
    return means["consensus_distance"], dict(zip(rows, total.tolist(), strict=True))
