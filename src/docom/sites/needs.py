"""The library that moves and encrypts messages between sites, imported where it is first used."""

from __future__ import annotations

from typing import Any


def zmq() -> Any:
    """The module `zmq`, whose libzmq must have CURVE.

    Raises:
        ValueError: it is not installed, or was built without encryption.
    """
    try:
        import zmq as found
    except ImportError as error:
        raise ValueError(f"sites need pyzmq: pip install 'docom[sites]' ({error})") from None
    if not found.has("curve"):
        raise ValueError(
            "this pyzmq was built without CURVE, so that nothing could be encrypted; install its wheel: pip install pyzmq"
        )
    return found
