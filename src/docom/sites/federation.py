"""A federation: which sites train together, how they are known and reached, who is linked with whom.

`docom.sites.members_file` reads it from ``federation.yaml``.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from docom.names import nearest
from docom.weights import Network

LONGEST_HOST = 253
HOST = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")


@dataclass(frozen=True)
class Address:
    """Where a site is reached, or listens.

    >>> Address.parse("[2001:db8::7]:7070").url
    'tcp://[2001:db8::7]:7070'
    """

    host: str
    port: int

    @staticmethod
    def parse(given: object, any_host: bool = False) -> Address:
        """An address from ``host:port``; with ``any_host``, ``*:port`` stands for all addresses of the machine."""
        text = given if isinstance(given, str) else ""
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        known = _is_ip(bare, 6 if bare != host else 4) or (
            bare == host and len(host) <= LONGEST_HOST and HOST.match(host)
        )
        if not (colon and port.isascii() and port.isdigit() and 1 <= int(port[:6]) < 2**16):
            raise ValueError(
                f"an address is host:port with a port of 1 to 65535, such as basel.example.org:7070; got {given!r}"
            )
        if not known and not (any_host and host == "*"):
            raise ValueError(
                f"{given!r} has no host that is understood; examples: basel.example.org:7070, 198.51.100.7:7070, "
                "[2001:db8::7]:7070"
            )
        return Address(bare, int(port))

    @property
    def url(self) -> str:
        """As libzmq writes it."""
        return f"tcp://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


@dataclass(frozen=True)
class Member:
    """One site as the others know it. address: None for a site that cannot be reached from outside. retired: it takes no part."""

    name: str
    key: str
    address: Address | None = None
    retired: bool = False


@dataclass(frozen=True)
class Skipping:
    """Settings of ``mode: skip``; see `docom.sites.skipping`.

    version: of the members' file, larger in a newer one. places: into how many parts the data of a preset are divided, at least
    as many as there will ever be members. behind: rounds; a site that is more than this behind a neighbour takes its model and
    round. gather: seconds to wait for the neighbours before the first round, and for one of them when all are away.
    clip: differences of models that are longer than this multiple of the usual ones are cut; None: none is.
    """

    version: int = 1
    places: int = 0
    behind: int = 20
    gather: float = 600.0
    clip: float | None = None


@dataclass(frozen=True, eq=False)
class Federation:
    """The checked content of a members' file.

    links: pairs of positions in ``members``; the first of a pair opens the connection if the second has an address, else the
        second does.
    patience: seconds to wait for a silent neighbour.
    heartbeat: seconds between signs of life on a link where nothing else is sent.
    redial: seconds without anything valid until a connection that stands is closed and opened again.
    log: megabytes of messages per neighbour that a site keeps until the neighbour has saved what it made of them.
    content: the file's values, as they are compared.
    skipping: what holds where sites go on without those that are away (``mode: skip``); None where all wait for all.
    """

    name: str
    members: tuple[Member, ...]
    links: tuple[tuple[int, int], ...]
    network: Network
    patience: float
    heartbeat: float
    redial: float
    log: float
    run: Mapping[str, Any]
    content: Mapping[str, str]
    skipping: Skipping | None = None

    @property
    def names(self) -> list[str]:
        """The names of all members, in the order of the agents."""
        return [member.name for member in self.members]

    def position(self, name: str) -> int:
        """The number of a member: its agent."""
        if name not in self.names:
            raise nearest("member", name, self.names)
        return self.names.index(name)

    @cached_property
    def digest(self) -> str:
        """Of everything in the file; comments and layout do not count."""
        return sha256(json.dumps(dict(self.content), sort_keys=True).encode()).hexdigest()

    def weight(self, member: int) -> float:
        """What a member gives each neighbour where sites may be away; the smaller one of both ends counts.

        That is Metropolis's rule: one over one more than the number of neighbours.
        """
        return 1 / (1 + len(self.neighbours(member)))

    def neighbours(self, member: int) -> list[int]:
        """The members with which this one has a link, ascending."""
        return sorted({j for link in self.links if member in link for j in link if j != member})

    def opens(self, member: int, other: int) -> bool:
        """Whether it is this member that opens the connection of a link."""
        if (member, other) in self.links:
            return self.members[other].address is not None
        return self.members[member].address is None

    def differences(self, theirs: Mapping[str, str], whose: str) -> list[str]:
        """What another site's file says otherwise."""
        return differences(self.content, theirs, whose)


def differences(mine: Mapping[str, str], theirs: Mapping[str, str], whose: str) -> list[str]:
    """The facts that differ, in words."""
    names = [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    return [f"{name}: {_short(theirs.get(name))} at {whose}, {_short(mine.get(name))} here" for name in names]


def _short(text: str | None) -> str:
    return "nothing" if text is None else text if len(text) <= 60 else f"{text[:57]}..."
