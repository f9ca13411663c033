"""One site, from its own point of view: which member it is, with its private key and its folder."""

from __future__ import annotations

from pathlib import Path

from docom.sites.federation import Address, Federation, Member, read
from docom.sites.keys import ENDING, KeyPair, read_keys


class Site:
    """A member of a federation on this machine.

    Args:
        federation: the members' file, or what was read from one.
        name: which of its members this is.
        key: the file of its private key; by default ``keys/NAME.secret`` beside the members' file.
        folder: where its checkpoints and its log go; by default ``NAME`` beside the members' file.
        listen: the address of this machine at which it accepts connections, if it differs from the one at which others reach it,
            as behind a router that passes a port on.

    Nothing is opened until a run or an optimizer uses it.
    """

    def __init__(
        self,
        federation: str | Path | Federation,
        name: str,
        *,
        key: str | Path | None = None,
        folder: str | Path | None = None,
        listen: str | None = None,
    ) -> None:
        beside = Path() if isinstance(federation, Federation) else Path(federation).parent
        self.federation = federation if isinstance(federation, Federation) else read(federation)
        self.name, self.agent = name, self.federation.position(name)
        path = beside / "keys" / f"{name}{ENDING}" if key is None else Path(key)
        self.keys: KeyPair = read_keys(path)
        if self.keys.public != self.me.key:
            raise ValueError(
                f"{path} is not the private key of {name}: the members' file lists {self.me.key!r}, and this is the key of "
                f"{self.keys.public!r}; put that into the file of all sites, or give the right one with --key"
            )
        self.folder = beside / name if folder is None else Path(folder)
        self.listens = self._listens(listen)

    @property
    def me(self) -> Member:
        """This site as the others know it."""
        return self.federation.members[self.agent]

    @property
    def neighbours(self) -> list[int]:
        """The members with which it has a link."""
        return self.federation.neighbours(self.agent)

    def _listens(self, given: str | None) -> Address | None:
        """Where it accepts connections: nowhere if it opens all of them itself."""
        others = [other for other in self.neighbours if not self.federation.opens(self.agent, other)]
        if given is not None:
            if self.me.address is None:
                raise ValueError(
                    f"{self.name} has no address in the members' file, so that nobody connects to it; leave out listen"
                )
            return Address.parse(given, any_host=True) if others else None
        return self.me.address if others else None

    def __repr__(self) -> str:
        return f"Site({self.name!r}, agent {self.agent} of {len(self.federation.members)} in {self.federation.name!r})"
