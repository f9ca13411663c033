"""What compression really kept of the messages of a channel, for who wants to know."""

from __future__ import annotations

from torch import Tensor


class Meter:
    """The contraction of the messages since it was last read.

    A message is to carry the difference ``wanted`` of a variable to its public copy, and carries ``sent``: its observed delta
    is ``1 - |wanted - sent|^2 / |wanted|^2``, of which a compressor's delta is a lower bound in expectation.
    """

    def __init__(self) -> None:
        self._wanted: Tensor | None = None
        self._lost: Tensor | None = None
        self._least: Tensor | None = None

    def note(self, wanted: Tensor, sent: Tensor) -> None:
        """One message a row."""
        asked, lost = (wanted.double() ** 2).sum(dim=1), ((wanted - sent).double() ** 2).sum(dim=1)
        least = (1 - lost / asked)[asked > 0]
        if self._wanted is None or self._lost is None:
            self._wanted, self._lost = asked.sum(), lost.sum()
        else:
            self._wanted, self._lost = self._wanted + asked.sum(), self._lost + lost.sum()
        if len(least):
            smallest = least.min()
            self._least = smallest if self._least is None else self._least.minimum(smallest)

    def read(self) -> tuple[float, float] | None:
        """Delta over all messages together, and of the worst one; None where nothing was sent. Starts anew."""
        wanted, lost, least = self._wanted, self._lost, self._least
        self._wanted = self._lost = self._least = None
        if wanted is None or lost is None or least is None:
            return None
        return float(1 - lost / wanted), float(least)
