"""A message under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")


class Pending(Generic[T]):
    """The result of an exchange that is still running; the caller may compute before it waits.

    under_way: whether messages are still on the network, so that computing first saves time.

    >>> sent = Pending(lambda: 20).then(lambda came: came + 1)
    >>> sent.under_way, sent.wait(), sent.wait(), sent.under_way
    (True, 21, 21, False)
    """

    def __init__(self, finish: Callable[[], T], under_way: bool = True) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: T | None = None
        self.under_way = under_way

    @staticmethod
    def of(result: T) -> Pending[T]:
        """A result that is available already."""
        return Pending(lambda: result, under_way=False)

    def then(self, use: Callable[[T], U]) -> Pending[U]:
        """The same exchange, with something done to its result when it is waited for."""
        return Pending(lambda: use(self.wait()), self.under_way)

    def also(self, later: Pending[U]) -> Pending[U]:
        """Both exchanges, of which this one was started first; the result is that of the later one."""

        def both() -> U:
            self.wait()
            return later.wait()

        return Pending(both, self.under_way or later.under_way)

    def wait(self) -> T:
        """The result. Waits the first time only."""
        if self._finish is not None:
            finish, self._finish = self._finish, None  # the memory it refers to is freed after it has run
            self._result = finish()
            self.under_way = False
        return cast(T, self._result)
