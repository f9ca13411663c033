"""Rows at rest: while gradients are computed most rows are not read, and may take less memory.

``host``: they lie in the host's memory (pinned, where it is a GPU's host) and come back as they were, to the bit.

``bf16``: a public copy ``hat`` is kept as ``x - hat`` in bf16, x being the row that was last pushed. The error is a share of what
has not been sent yet, not of the model. Neighbours do not know of it, so that errors add up, and where a run stands still they
would add up to the same side: they are rounded at random, without bias, by draws that depend on agent, round and coordinate.
What they sum up to is how far agents are from agreeing; sums over agents stay as they are. Gaps stay float32: their errors would
be added to models and trackers in every round.

Memory that a row does not need is given back by giving its tensor other data; the tensor itself stays what methods and channels
know. Rows of which somebody keeps a part by another tensor therefore do not rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from docom import rng
from docom.channels.collection import Channels
from docom.channels.gossip import CompressedChannel

FORMS = ("full", "bf16", "host")
STREAM = 2**31  # of the draws for rounding, beside those of the channel
Wake = Callable[[], object]


def check_form(form: object) -> str:
    """A known form of resting rows."""
    if not isinstance(form, str) or form not in FORMS:
        raise ValueError(
            'rows is "full" (as they are) or, between exchanges, "bf16" (public copies in 16 bits) or "host" (all in the '
            f"host's memory), got {form!r}"
        )
    return form


class Resting:
    """The rows of some agents, at rest or awake.

    form: see `FORMS`. channels: whose rows may rest.
    """

    def __init__(self, form: str, channels: Channels) -> None:
        self.form, self.channels = form, channels
        self._asleep: list[tuple[Tensor, torch.Size, Wake]] = []
        self._hosted: dict[str, Tensor] = {}
        self._copies = [channel for channel in channels.values() if type(channel) is CompressedChannel]
        if form == "bf16":
            self._copies = [channel for channel in self._copies if not channel.bound.lossless]
            kinds = {channel.hat.dtype for channel in self._copies}
            if kinds != {torch.float32}:
                raise ValueError(
                    'rows="bf16" is for float32 public copies, which a method with compressed gossip keeps; '
                    + ("these are float64" if kinds else 'there are none here, take rows="host"')
                )

    @contextmanager
    def while_computing(self, state: Mapping[str, Tensor], needed: Collection[Tensor]) -> Iterator[None]:
        """Rows are at rest inside; ``needed`` ones are not."""
        self.rest(state, needed)
        try:
            yield
        finally:
            self.wake()

    def rest(self, state: Mapping[str, Tensor], needed: Collection[Tensor]) -> None:
        """Put the rows of channels, and with "host" those of the state, to rest, but for the needed ones."""
        self.wake()
        if self.form == "bf16":
            for channel in self._copies:
                if (base := self._base(channel, state)) is not None:
                    key = rng.Key(channel.key.seed, channel.key.stream + STREAM)
                    noise = rng.words(key, channel.transport.agents, channel.rounds, channel.hat.shape[1])
                    self._put(channel.hat, difference(base, channel.hat, noise))
        else:
            seen = {row.untyped_storage().data_ptr() for row in needed}
            for name, row in {**self.channels.rows(), **state}.items():
                if (place := row.untyped_storage().data_ptr()) not in seen:
                    seen.add(place)
                    self._put(row, self._to_host(name, row))
        for every in self.channels.values():
            for row in every.scratch():
                self._put(row, lambda: None)

    @staticmethod
    def _base(channel: CompressedChannel, state: Mapping[str, Tensor]) -> Tensor | None:
        """The row that a copy follows: what was pushed, or the model where a method pushes what it only has for a moment."""
        pushed = next((row for row in state.values() if row is channel.pushed), None)
        return state.get("x") if pushed is None and channel.variable == "model" else pushed

    def wake(self) -> None:
        """All rows are as full as methods and channels expect them."""
        for row, shape, fill in self._asleep:
            row.data = torch.empty(shape, dtype=row.dtype, device=row.device)
            fill()
        self._asleep.clear()

    def _put(self, row: Tensor, fill: Wake) -> None:
        if row.untyped_storage().nbytes() == row.nbytes:  # not a part of a larger tensor
            self._asleep.append((row, row.shape, fill))
            row.data = torch.empty(0, dtype=row.dtype, device=row.device)

    def _to_host(self, name: str, row: Tensor) -> Wake:
        """Copies there and back are in order with the kernels before and after them, so nothing waits here."""
        if name not in self._hosted:
            self._hosted[name] = torch.empty(row.shape, dtype=row.dtype, pin_memory=row.is_cuda)
        kept = self._hosted[name].copy_(row, non_blocking=True)
        return lambda: row.copy_(kept, non_blocking=True)


def difference(base: Tensor, hat: Tensor, noise: Tensor) -> Wake:
    """A copy, kept as the difference of its variable to it. noise: of every number, 16 random bits or more."""
    kept = rounded(base - hat, noise)
    return lambda: torch.sub(base, kept.to(base.dtype), out=hat)


def rounded(rows: Tensor, noise: Tensor) -> Tensor:
    """Float32 numbers in bf16: one of the two next to each, and their mean is the number."""
    bits = rows.view(torch.int32) + (noise & 0xFFFF).to(torch.int32)  # what is cut off carries as often as it is large
    return (bits >> 16).to(torch.int16).view(torch.bfloat16)
