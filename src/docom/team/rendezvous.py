"""Where the processes of a team find each other: a key-value store at an address that all of them know.

The store has no password: every client that reaches its port can read and write there. torch's own store listens on all addresses
of its host, so when this program keeps the store it opens the socket itself, only on the loopback address if the processes meet
there.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from docom.team.launchers import Placement


class OpenRendezvous(UserWarning):
    """The meeting point can be reached from other hosts."""


def open_store(placement: Placement, patience: float) -> Any:
    """The store of the processes of one launch; waits up to ``patience`` seconds for the others.

    Raises:
        ValueError: the port is in use, or there is no store there.
    """
    keeps = placement.rank == 0 and not placement.agent_store
    where = f"{placement.address}:{placement.port}"
    if placement.rank == 0 and placement.world > 1 and not is_loopback(placement.address):
        warnings.warn(_open(where, placement.agent_store), OpenRendezvous, stacklevel=3)
    listening = _listener(placement).detach() if keeps else None
    try:
        met = dist.TCPStore(  # type: ignore[attr-defined]
            placement.address, placement.port, placement.world, keeps, timedelta(seconds=patience),
            master_listen_fd=listening,
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(
            f"the processes do not meet at {where} ({str(error).splitlines()[0]}); MASTER_ADDR and MASTER_PORT must be the "
            "same in all processes, and free for process 0 to listen at"
        ) from None
    return dist.PrefixStore(f"docom/{placement.restarts}", met)  # type: ignore[attr-defined]


def is_loopback(address: str) -> bool:
    """Whether an address can only mean this host; the name of a host does not count.

    >>> [is_loopback(address) for address in ("localhost", "127.0.0.1", "::1", "node7", "10.0.0.4")]
    [True, True, True, False, False]
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _listener(placement: Placement) -> socket.socket:
    """A socket that listens at the port: on the loopback address if the processes meet there, else on all addresses."""
    own, dual = is_loopback(placement.address), socket.has_dualstack_ipv6()
    six = ":" in placement.address or (not own and dual)
    host = ("::1" if six else "127.0.0.1") if own else ""
    try:
        return socket.create_server(
            (host, placement.port),
            family=socket.AF_INET6 if six else socket.AF_INET,
            dualstack_ipv6=six and not own and dual,
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(
            f"port {placement.port}, at which the processes must meet, is in use on this host; set MASTER_PORT to a free "
            "port, the same in all processes (torchrun: --master-port), or end the program that listens there"
        ) from None


def _open(where: str, launcher_s: bool) -> str:
    """The risk of an open store, and what to do."""
    risk = "can stop the run"
    if launcher_s:
        risk += ", and under torchrun's c10d rendezvous (--rdzv-backend c10d) run code in the launcher"
    return (
        f"the processes meet at {where}, open to other hosts and without a password: a client that reaches it {risk}. Keep it "
        "behind a firewall or in a private network; on one host set MASTER_ADDR=127.0.0.1 (torchrun: --master-addr 127.0.0.1)"
    )
