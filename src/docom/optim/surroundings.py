"""The surroundings of an agent: other processes, network, compressors. Checked here, compared, and opened as channels."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from docom.algorithms import AWAY, CHANGING, DIRECTED, Algorithm, require
from docom.channels import Channels, Gossip, open_channels, parse_gossip
from docom.compressors import Compressor
from docom.consensus import channel_gossip, resolve_gamma
from docom.layout import Layout
from docom.optim.parameters import Flat, digest
from docom.optim.ranks import Ranks
from docom.optim.together import start_from_first
from docom.team import Team
from docom.transports import Transport
from docom.weights import Network, network

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Surroundings:
    """All that is fixed for the whole run, except the parameters. ``algorithm`` is as the user gave it."""

    def __init__(
        self,
        algorithm: Algorithm,
        team: Team,
        ranks: Ranks,
        topology: Any,
        weights: Any,
        compressor: str | Compressor | Gossip | None,
        seed: int,
    ) -> None:
        self.algorithm, self.team, self.ranks, self.seed = algorithm, team, ranks, seed
        self.network = network(topology, team.world, weights, seed)
        if self.network.changes:
            require(algorithm, CHANGING)
        if self.network.directed:
            require(algorithm, DIRECTED)
        self.gossip = channel_gossip(algorithm, parse_gossip(compressor))

    @property
    def settings(self) -> dict[str, object]:
        """How each variable travels, as a user gives it."""
        return {variable: how.setting for variable, how in self.gossip.items()}

    def described(self, flat: Flat) -> dict[str, str]:
        """As text: what must be equal at all agents, and in a run and the one that it continues."""
        shapes = torch.tensor(list(str(flat.whole.shapes).encode()), dtype=torch.uint8)
        return {
            "number of agents": str(self.network.n),
            "algorithm": plain(self.algorithm),
            "compressor": plain(self.settings),
            "network": f"{self.network} ({_digest(self.network)})",
            "parameters": f"{flat.whole.dimension} numbers in {len(flat.parameters)} tensors ({digest(shapes)})",
            "groups": ", ".join(map(str, flat.whole_shares)),
            "dtype": str(flat.dtype),
            "seed": str(self.seed),
        }

    def automatic_gamma(self, layout: Layout) -> dict[str, float]:
        """The consensus steps that are "auto", as agent 0 measures them: others might get another one by rounding.

        Of several ranks, which have shards of different sizes, the one that needs the smallest step decides.
        """
        names = [name for name, size in self.algorithm.step_sizes().items() if size.consensus_of]
        if not names:
            return {}
        found = dict.fromkeys(names, 0.0)
        if self.team.leads:
            _, measurements = resolve_gamma(self.algorithm, self.gossip, self.network, layout)
            found |= {name: measurement.gamma for name, measurement in measurements.items()}
        values = torch.tensor([found[name] for name in names], dtype=torch.float64)
        start_from_first(self.team, [values])
        steps = self.ranks.smallest(values.tolist())
        return {name: value for name, value in zip(names, steps, strict=True) if value > 0}

    def channels(self, flat: Flat, transport: Transport) -> Channels:
        """The channels of the method."""
        kinds = {name: (kind, self.gossip[name]) for name, kind in self.algorithm.channels.items()}
        layouts = {name: self.algorithm.message_layout(name, flat.layout) for name in kinds}
        return open_channels(kinds, self.network, layouts, transport, flat.dtype, self.ranks.seed(self.seed))


def _digest(given: Network) -> str:
    """Of a network, so that agents can compare theirs."""
    if given.changes or given.directed:
        return digest(torch.frombuffer(bytearray(b"".join(given.identity())), dtype=torch.uint8))
    return digest(torch.tensor(given.matrix))


def plain(setting: object) -> str:
    """A setting as text, without the addresses in the names of functions."""
    return ADDRESS.sub("", str(setting))


def check_site(left_out: dict[str, bool]) -> None:
    """Raise for arguments that the members' file of a site replaces."""
    if given := [name for name, absent in left_out.items() if not absent]:
        raise ValueError(f"with site= the members' file decides on this; leave out {', '.join(given)}")


def check_apart(algorithm: Algorithm, buffers: str, overlap: int) -> None:
    """Raise for what needs all agents, where each goes on without those that are away."""
    require(algorithm, AWAY)
    measured = [name for name, size in algorithm.step_sizes().items() if size.consensus_of]
    if auto := [name for name in measured if getattr(algorithm, name) == "auto"]:
        raise ValueError(
            f'{auto[0]} cannot be "auto" with mode: skip, since it is measured for one network; give a number'
        )
    if overlap:
        raise ValueError("overlap needs all neighbours in every round; leave it out, or use mode: wait")
    if buffers == "average":
        raise ValueError('buffers="average" needs all neighbours in every round; leave it out, or use mode: wait')


def check_mesh(**others: object) -> None:
    """Raise for arguments that a mesh replaces."""
    if given := [name for name, value in others.items() if value is not None]:
        raise ValueError(f"with mesh= the mesh says which processes are agents; leave out {', '.join(given)}")


def check(algorithm: Algorithm, model: nn.Module | None, buffers: str, dtype: torch.dtype | None) -> None:
    """Raise for settings that cannot be run, before anything is started."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise TypeError(f"the second argument is an algorithm such as docom.DoCoM(lr=0.01), got {algorithm!r}")
    if algorithm.learning_rate_name() is None:
        raise TypeError(
            f"{algorithm.name} declares no learning rate, which an optimizer's method needs: lr: float = docom.learning_rate()"
        )
    if algorithm.b0 is not None:
        raise ValueError(
            f"b0={algorithm.b0}: the batch of the first step is b0 here; leave b0 out, make that batch larger"
        )
    if algorithm.output != "last":
        raise ValueError(f"output={algorithm.output!r}: a training loop keeps its own models; leave output out")
    if buffers not in ("local", "average"):
        raise ValueError(f'buffers is "local" or "average", got {buffers!r}')
    if buffers == "average" and model is None:
        raise ValueError('buffers="average" needs the module that has them: pass model=')
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is torch.float32 or torch.float64 (copies drift in less), got {dtype}")
