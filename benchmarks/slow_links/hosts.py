"""Hosts on one machine: one network namespace per host, joined by a bridge, with a token bucket at both ends of every line.

A host's line is a veth pair: ``eth0`` in the namespace, the other end in the bridge. `tc ... tbf` limits what leaves either end,
so that a host can send and receive at the given rate at the same time. Latency cannot be shaped this way. Needs root.

Hosts are configured for slow lines. With Linux's default settings at 1 Mbit/s, whole vectors from many neighbours overflow the
queue of a line and are sent again (5 to 7% more bytes, a quarter to a third more time), and the last segment of a short message
is sent twice because its acknowledgement waits in the queue (3 to 4% more bytes). Small windows and no tail-loss probes avoid
both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

DEVICE = "eth0"
BURST, QUEUE = "16kb", "1000ms"  # what may leave at once, and how long a packet may wait before it is dropped
TCP = {"tcp_rmem": "4096 16384 16384", "tcp_early_retrans": "0"}  # the receiver's window; no probes for lost tails
SEGMENT_HEADERS = 66  # Ethernet 14, IP 20, TCP 32 with time stamps, for every packet


def why_not() -> str | None:
    """Why hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} is missing"
    probe = f"docom{os.getpid()}p"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str
    address: str
    outer: str  # the other end of its line

    def inside(self, *command: str) -> list[str]:
        """The command, to be run in this host."""
        return ["ip", "netns", "exec", self.name, *command]

    def sent(self) -> tuple[int, int]:
        """Bytes and packets that have left this host."""
        stats = json.loads(_run(*self.inside("ip", "-s", "-j", "link", "show", DEVICE)))[0]["stats64"]["tx"]
        return int(stats["bytes"]), int(stats["packets"])


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """``count`` hosts with lines that are not limited yet."""
    tag = f"dc{os.getpid() % 100000}"
    bridge, made = f"{tag}br", [Host(f"{tag}h{i}", f"10.77.0.{i + 1}", f"{tag}v{i}") for i in range(count)]
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for host in made:
            _run("ip", "netns", "add", host.name)
            _run("ip", "link", "add", host.outer, "type", "veth", "peer", "name", DEVICE, "netns", host.name)
            _run("ip", "link", "set", host.outer, "master", bridge, "up")
            _run(*host.inside("ip", "addr", "add", f"{host.address}/24", "dev", DEVICE))
            _run(*host.inside("ip", "link", "set", DEVICE, "up"))
            _run(*host.inside("ip", "link", "set", "lo", "up"))
            for name, value in TCP.items():
                _run(*host.inside("sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{name}"))
        yield made
    finally:
        for host in made:  # the devices of a namespace disappear some time after it: new hosts must not use their names
            subprocess.run(["ip", "link", "del", host.outer], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def set_rate(team: list[Host], megabits: float | None, slow_line: float | None = None) -> None:
    """Limit every line to ``megabits`` Mbit/s each way, the first host's to ``slow_line`` if given; None for no limit."""
    for number, host in enumerate(team):
        rate = slow_line if slow_line is not None and number == 0 else megabits
        for inside, device in ((True, DEVICE), (False, host.outer)):
            shape = ("tbf", "rate", f"{rate}mbit", "burst", BURST, "latency", QUEUE) if rate else ("pfifo_fast",)
            command = ("tc", "qdisc", "replace", "dev", device, "root", *shape)
            _run(*(host.inside(*command) if inside else command))
