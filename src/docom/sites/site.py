"""One site, from its own point of view: which member it is, with its private key and its folder."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from contextlib import ExitStack
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from docom.ownership import owned
from docom.runfolder import RunFolder, write_whole
from docom.sites.federation import Address, Federation, Member
from docom.sites.keys import ENDING, KeyPair, read_keys
from docom.sites.members_file import read

if TYPE_CHECKING:
    from docom.sites.team import ApartTeam, SiteTeam

LOG = "site.log"
STATE = "state-"


class Site:
    """A member of a federation on this machine.

    Args:
        federation: the members' file, or what was read from one.
        name: which of its members this is.
        key: the file of its private key; by default ``keys/NAME.secret`` beside the members' file.
        folder: where its checkpoints and its log go; by default ``NAME`` beside the members' file.
        listen: the address of this machine at which it accepts connections, if it differs from the one at which others reach it,
            as behind a router that passes a port on.

    Nothing is opened until a run or an optimizer uses it. In a ``with`` statement it is finished at the end.
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
        self.path = None if isinstance(federation, Federation) else Path(federation)
        self._listen = listen
        self.listens = self.where_it_listens()
        self.continues = False  # whether a state was loaded, from which an optimizer will continue
        self._team: SiteTeam | ApartTeam | None = None
        self._recorded = False  # whether this start has written a record
        self._owning = ExitStack()

    @property
    def me(self) -> Member:
        """This site as the others know it."""
        return self.federation.members[self.agent]

    @property
    def neighbours(self) -> list[int]:
        """The members with which it has a link."""
        return self.federation.neighbours(self.agent)

    # What a training loop uses

    def load(self) -> dict[str, Any] | None:
        """The state that was saved last, or None if there is none; called before the optimizer is made.

        Raises:
            ValueError: there are saved states, but all of them are damaged.
        """
        reasons = []
        for path in reversed(self._states()):
            try:
                found = torch.load(path, weights_only=True)
            except Exception as error:
                reasons.append(f"{path.name}: {type(error).__name__}")
                continue
            if isinstance(found, dict):
                self.continues = True
                return found
            reasons.append(f"{path.name}: no state of a site")
        if reasons:
            raise ValueError(f"no state in {self.folder} can be read ({'; '.join(reasons)})")
        return None

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a state, for a restart: the optimizer's ``state_dict()``, the model's, and what else the loop needs.

        Tensors, numbers, strings and containers of them. The last two are kept; messages from before the older one of them are
        not needed again, and the neighbours may forget them.
        """
        if self._team is None:
            raise RuntimeError("there is nothing to save yet: make docom.optim.Decentralized(..., site=site) first")
        numbers = [int(path.stem.removeprefix(STATE)) for path in self._states()]
        path = self.folder / f"{STATE}{max(numbers, default=0) + 1}.pt"
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_whole(path, buffer.getvalue())
        self._team.saved()
        for old in self._states()[:-2]:
            old.unlink(missing_ok=True)
        return path

    def record(self, values: Mapping[str, float | None]) -> None:
        """Add a line to ``metrics.jsonl`` in the folder, from which `docom site watch` draws curves.

        values: the optimizer's ``stats``, or what its ``measure()`` returns, with the ``loss`` and what else the loop measures;
        those that are None are left out. What an earlier start has written from this step on is made again, and dropped.
        """
        step = values.get("step")
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"a record needs the step, as in opt.stats | {{'loss': 0.5}}; got {step!r}")
        files = RunFolder(self.folder)
        if not self._recorded:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.truncate(step)
            self._recorded = True
        files.append({"step": step} | {name: float(value) for name, value in values.items() if value is not None})

    @property
    def retired(self) -> bool:
        """Whether the members' file says, in ``mode: skip``, that this site takes no part any more: its loop ends then."""
        return self.me.retired

    def team(self) -> SiteTeam | ApartTeam:
        """The team of this site for one optimizer; the folder is this process's own until `finish` or `close`."""
        from docom.sites.team import team_of

        if self._team is not None:
            raise ValueError(f"{self.name} has an optimizer already; a site is one agent of one run")
        if self._states() and not self.continues:
            raise ValueError(
                f"{self.folder} holds the state of a run: call site.load() before the optimizer is made, and continue from it, "
                "or choose another folder="
            )
        self._owning.enter_context(owned(self.folder))
        self._team = team_of(self, self._said)
        if self.continues:
            self._team.rehearse()
        return self._team

    def finish(self) -> None:
        """Wait until no other site needs anything from here, and close the connections; called when training has ended."""
        if self._team is not None:
            self._team.leave()
        self._owning.close()

    def close(self, text: str = "") -> None:
        """Close the connections without waiting; the run can be continued from the last saved state."""
        if self._team is not None:
            self._team.close(text)
        self._owning.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.close("was stopped" if isinstance(error, KeyboardInterrupt) else f"failed: {error}")

    def _states(self) -> list[Path]:
        found = [path for path in self.folder.glob(f"{STATE}*.pt") if path.stem.removeprefix(STATE).isdigit()]
        return sorted(found, key=lambda path: int(path.stem.removeprefix(STATE)))

    def _said(self, text: str) -> None:
        self.note(text)
        getLogger("docom.sites").info("%s: %s", self.name, text)

    def note(self, text: str) -> None:
        """Write a line to the site's log, ``site.log`` in its folder."""
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOG).open("a") as file:
            file.write(line)

    def where_it_listens(self) -> Address | None:
        """Where it accepts connections, by the members' file as it is: nowhere if it opens all of them itself."""
        given = self._listen
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
