"""A message under way."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")


class Pending(Generic[T]):
    """The result of an exchange that is still running; the caller may compute before it waits.

    under_way: whether messages are still on the network, so that computing first saves time.

    >>> sent = Pending(lambda: 20).then(lambda came: came + 1)
    >>> sent.under_way, sent.wait(), sent.wait(), sent.under_way
    (True, 21, 21, False)
    """

    def __init__(
        self, finish: Callable[[], T], under_way: bool = True, ready: Callable[[], bool] | None = None
    ) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: T | None = None
        self._ready = ready
        self.under_way = under_way

    @staticmethod
    def of(result: T) -> Pending[T]:
        """A result that is available already."""
        return Pending(lambda: result, under_way=False)

    @staticmethod
    def in_turn(exchanges: Generator[Pending[Any], Any, T]) -> Pending[T]:
        """Exchanges of which each begins when the one before has arrived: the generator yields them, is sent what came, and
        returns the result."""
        turns = _Turns(exchanges)
        return Pending(turns.wait, not turns.ready(), turns.ready)

    def then(self, use: Callable[[T], U]) -> Pending[U]:
        """The same exchange, with something done to its result when it is waited for."""
        return Pending(lambda: use(self.wait()), self.under_way, self.ready)

    def also(self, later: Pending[U]) -> Pending[U]:
        """Both exchanges, of which this one was started first; the result is that of the later one."""

        def both() -> U:
            self.wait()
            return later.wait()

        return Pending(both, self.under_way or later.under_way, lambda: self.ready() and later.ready())

    def ready(self) -> bool:
        """Whether nothing is left to wait for. Of exchanges in turn, those whose turn has come are begun.

        Ask whenever there is time, at any moment: what is done with the result is done in `wait`.
        """
        if self._finish is None:
            return True
        return not self.under_way if self._ready is None else self._ready()

    def wait(self) -> T:
        """The result. Waits the first time only."""
        if self._finish is not None:
            finish, self._finish, self._ready = self._finish, None, None  # what they refer to is freed after it has run
            self._result = finish()
            self.under_way = False
        return cast(T, self._result)


class _Turns(Generic[T]):
    """Exchanges in turn, and the one that is under way."""

    def __init__(self, exchanges: Generator[Pending[Any], Any, T]) -> None:
        self.exchanges = exchanges
        self.now: Pending[Any] | None = None
        self.result: T | None = None
        self._go_on(None)

    def _go_on(self, came: Any) -> None:
        try:
            self.now = self.exchanges.send(came)
        except StopIteration as end:
            self.now, self.result = None, end.value

    def ready(self) -> bool:
        """See `Pending.ready`."""
        while self.now is not None and self.now.ready():
            self._go_on(self.now.wait())
        return self.now is None

    def wait(self) -> T:
        """See `Pending.wait`."""
        while self.now is not None:
            self._go_on(self.now.wait())
        return cast(T, self.result)
