"""What is used of a key-value store of ``torch.distributed``."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol


class Store(Protocol):
    """Keys and values that all processes see."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read, waiting until it is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; its new value."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all of them are there."""

    def delete_key(self, key: str) -> bool:
        """Remove."""

    def clone(self) -> Store:
        """The same store over another connection."""
