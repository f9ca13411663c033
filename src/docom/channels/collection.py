"""The channels of one algorithm, opened over a network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from docom.channels.base import Channel
from docom.channels.named import Uncompressed, parse_gossip
from docom.channels.opening import KINDS, Gossip, Opening
from docom.compressors import Compressor
from docom.conditions import NOTHING, Conditions
from docom.layout import Layout
from docom.rng import CHANNEL, Key
from docom.transports import Transport
from docom.weights import Network, pushing, unweighted

OLDER = {"exact": "uncompressed"}
# The weights that a kind of variable is sent over, where they are not those of the network itself.
WEIGHTS_OF = {"unweighted": unweighted, "pairs": unweighted, "push": pushing, "sums": pushing}


class Sent(NamedTuple):
    """What has been sent before the present members took part."""

    bits: float = 0
    wire_bytes: int = 0
    lost: int | None = None
    rounds: Mapping[str, int] = MappingProxyType({})


class Channels(Mapping[str, Channel]):
    """The channels of one algorithm by variable, and the network they run over.

    before: what was sent before the present members took part, over other channels.

    >>> channels["model"].push(x)                                   # doctest: +SKIP
    """

    def __init__(self, network: Network, channels: dict[str, Channel]) -> None:
        self.network, self.before = network, Sent()
        self._channels = channels

    def __getitem__(self, variable: str) -> Channel:
        return self._channels[variable]

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def bits(self) -> float:
        """Bits one agent has sent so far, by the paper's formula."""
        return self.before.bits + sum(channel.bits for channel in self.values())

    @property
    def wire_bytes(self) -> int:
        """Bytes all agents have put on all links so far."""
        return self.before.wire_bytes + sum(channel.wire_bytes for channel in self.values())

    @property
    def lost(self) -> int | None:
        """Transmissions that did not arrive so far; None where the network loses none."""
        lost = [channel.lost for channel in self.values() if channel.lost is not None]
        return sum(lost) + (self.before.lost or 0) if lost else None

    def rows(self) -> dict[str, Tensor]:
        """All rows that the channels keep, by ``variable.name``."""
        return {f"{variable}.{name}": row for variable, c in self.items() for name, row in c.rows().items()}

    def expect(self, rows: Mapping[str, Tensor]) -> None:
        """Make room for the rows of a checkpoint; see `Channel.expect`."""
        for variable, channel in self.items():
            prefix = f"{variable}."
            channel.expect({key[len(prefix) :]: row for key, row in rows.items() if key.startswith(prefix)})

    def load(self, rows: Mapping[str, Tensor], rounds: Mapping[str, int]) -> None:
        """Restore what `rows` and `rounds` returned."""
        for variable, channel in self.items():
            prefix = f"{variable}."
            channel.load({key[len(prefix) :]: row for key, row in rows.items() if key.startswith(prefix)})
            channel.resume(int(rounds[variable]))

    @property
    def capturable(self) -> bool:
        """Whether the work of all channels in a step can be captured on a GPU and replayed; with a real network it cannot."""
        return all(channel.capturable for channel in self.values())

    def check(self) -> None:
        """Raise `NonFiniteVariable` if a GPU has found numbers that are not finite."""
        for channel in self.values():
            channel.check()

    def rounds(self) -> dict[str, int]:
        """How often each channel has been used."""
        return {variable: channel.rounds for variable, channel in self.items()}

    def rounds_in_all(self) -> dict[str, int]:
        """How often each variable has been sent since the start of the run."""
        return {variable: rounds + self.before.rounds.get(variable, 0) for variable, rounds in self.rounds().items()}


def open_channels(
    variables: Mapping[str, tuple[str, str | Gossip | Compressor]],
    network: Network,
    layout: Layout | Mapping[str, Layout],
    transport: Transport,
    dtype: torch.dtype,
    seed: int = 0,
    conditions: Conditions = NOTHING,
    conserved: Collection[str] = (),
) -> Channels:
    """A channel for every variable, given its kind (see `KINDS`) and how it is sent, in any form that `parse_gossip` takes.

    layout: of the rows of every variable, or of each by its name. conserved: variables whose gaps must add up to zero.

    A variable of a kind that the description does not serve (see `Gossip.kinds`) is sent uncompressed.
    """
    channels: dict[str, Channel] = {}
    for position, (variable, (kind, how)) in enumerate(variables.items()):
        tensors = layout if isinstance(layout, Layout) else layout[variable]
        key, kind = Key(seed, CHANNEL + position), known_kind(variable, kind)
        over = WEIGHTS_OF[kind](network) if kind in WEIGHTS_OF else network
        at = Opening(variable, kind, tensors, over, transport, dtype, key, conditions, position, variable in conserved)
        gossip = parse_gossip(how)
        channel = (gossip if at.kind in gossip.kinds else Uncompressed()).open(at)
        for asked, can, which in (
            (conditions.loses_messages, channel.repairs, "lost or late"),
            (conditions.doubts_messages, channel.bounds, "cut or wrong"),
        ):
            if asked and not can:
                raise ValueError(
                    f"the {variable} is sent through {type(channel).__name__}, which has no repair for messages that are "
                    f"{which}; take a compressor such as topk:0.05, or none"
                )
        if network.changes and not channel.follows_changes:
            raise ValueError(
                f"the {variable} is sent through {type(channel).__name__}, whose state at both ends of a link belongs to "
                f"one network, and {network.name} changes; use a compressor such as topk:0.05 or none, or a network that does "
                "not change"
            )
        channel.number = position
        channels[variable] = channel
    return Channels(network, channels)


def known_kind(variable: str, kind: str) -> str:
    """A kind by its present name; raises an error for an unknown one."""
    kind = OLDER.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"a channel is {', '.join(map(repr, KINDS))}, got {kind!r} for {variable}")
    return kind
