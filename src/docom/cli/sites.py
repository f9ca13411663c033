"""What `docom site` does: keys and members' files, and runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from docom import presets
from docom.cli import commands
from docom.cli.commands import DIVERGED, INTERRUPTED, MENDABLE, Launch, data_folder, say
from docom.config import RunConfig, from_dict
from docom.sites import Site, make_keys
from docom.sites.members_file import EXAMPLE

if TYPE_CHECKING:
    from docom.runner import Outcome
    from docom.sites.federation import Federation
    from docom.sites.team import ApartTeam, SiteTeam
    from docom.terminal import StepBar


@dataclass(frozen=True)
class Where:
    """Where the files of a site are, and at which address it accepts connections; None for the defaults."""

    key: Path | None = None
    folder: Path | None = None
    listen: str | None = None

    def site(self, federation: Path, name: str) -> Site:
        """The site."""
        return Site(federation, name, key=self.key, folder=self.folder, listen=self.listen)


def keys(name: str, folder: Path) -> None:
    """See `docom.cli.site_app.site_keys`."""
    path, public = make_keys(name, folder)
    say(f"private key: {path} (keep it on this machine; make a copy for the case that the disk fails)")
    say("for the members' file, which all sites have:")
    say(f"  - name: {name}\n    key: '{public}'")


def init(path: Path) -> None:
    """See `docom.cli.site_app.site_init`."""
    try:
        with path.open("x") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise FileExistsError(f"{path} exists already; choose another name") from None
    say(f"{path} written; put in the members' names, keys and addresses, and give the same file to all of them")


def run(
    federation: Path, name: str, where: Where, launch: Launch, data: Path | None, device: str, threads: int
) -> None:
    """See `docom.cli.site_app.site_run`."""
    from docom.sites.team import team_of
    from docom.terminal import StepBar

    site = where.site(federation, name)
    config = configured(site, device, threads)
    again = f"docom site run {federation} --as {name}"
    with StepBar(config.steps, name) as bar:
        team = team_of(site, lambda text: _note(site, bar, text))
        try:
            with warnings.catch_warnings():
                warnings.showwarning = commands.warn
                outcome = _carry_out(site, config, data_folder(data), launch, team, bar)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt) or team.stopping
            said = "was stopped" if stopped else str(error) if isinstance(error, MENDABLE) else "failed"
            site.note(said)
            team.close(said)
            if not stopped:
                raise
            say(f"stopped in the middle of a step; `{again}` continues from the last checkpoint in {site.folder}")
            raise SystemExit(INTERRUPTED) from None
        if outcome.status == "interrupted":
            team.close("was stopped, and has saved")
            say(f"saved; `{again}` continues")
            raise SystemExit(INTERRUPTED)
        bar.note("waiting until no other site needs anything from here")
        team.leave()
    _tell_end(site, outcome)


def check(federation: Path, name: str, where: Where, seconds: float) -> None:
    """See `docom.cli.site_app.site_check`."""
    from rich.table import Table

    from docom.sites.check import check as check_links

    site = where.site(federation, name)
    if site.federation.run:
        configured(site)
    where_from = "accepts no connections" if site.listens is None else f"accepts connections at {site.listens}"
    say(
        f"{name}: agent {site.agent} of {len(site.federation.members)}, {where_from}; digest {site.federation.digest[:16]}"
    )
    found = check_links(site, seconds, note=say)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("link to", "opened by", "state", "latency", "up", "down"):
        table.add_column(title)
    for link in found:
        rates = [f"{rate / 1e6:.3g} Mbit/s" if rate else "" for rate in (link.up, link.down)]
        latency = "" if link.latency is None else f"{1000 * link.latency:.3g} ms"
        table.add_row(link.name, link.opened_by, Text("ready" if link.ready else link.why), latency, *rates)
    commands.console.print(table)
    if not all(link.ready for link in found):
        raise SystemExit(1)


def configured(site: Site, device: str = "cpu", threads: int = 1) -> RunConfig:
    """The run that a members' file describes, as this site runs it."""
    return configured_run(site.federation, device, threads)


def configured_run(federation: Federation, device: str = "cpu", threads: int = 1) -> RunConfig:
    """The run that a members' file describes."""
    given = dict(federation.run)
    if not given:
        raise ValueError(
            "the members' file has no run section, such as run: {preset: synthetic}; for a training loop of your own use "
            "docom.optim.Decentralized(..., site=...)"
        )
    skipping = federation.skipping
    agents = len(federation.members) if skipping is None else skipping.places
    given |= {"agents": agents, "device": device, "threads": given.get("threads") or threads}
    given |= {"topology": federation.network.name, "weights": None}
    try:
        preset = given.pop("preset", None)
        if preset is None:
            return from_dict(given)
        presets.find(preset)  # a name, and no file
        hyper = given.pop("hyper", None) or {}
        return commands.configure(preset, given.pop("algorithm", None), given.pop("compressor", None), given, hyper)
    except (ValueError, TypeError) as error:
        raise ValueError(f"run section of the members' file: {error}") from None


def _carry_out(
    site: Site, config: RunConfig, home: Path, launch: Launch, team: SiteTeam | ApartTeam, bar: StepBar
) -> Outcome:
    """Start the run, or continue the one in the site's folder."""
    from docom.runfolder import RunFolder
    from docom.runner import execute

    resume = bool(RunFolder(site.folder).there()) and not launch.overwrite
    return execute(
        config, site.folder, home, resume, bar, launch.command, launch.checkpoint_seconds, team, launch.overwrite,
        launch.tensorboard,
    )  # fmt: skip


def _tell_end(site: Site, outcome: Outcome) -> None:
    final = outcome.records[-1]
    shown = ", ".join(f"{key} {commands.show(key, final[key])}" for key in ("loss_mean", "loss_worst") if key in final)
    say(f"{site.name}: {outcome.status} after {final['step']:,} steps, {shown}; results in {site.folder}")
    if outcome.status == "diverged":
        raise SystemExit(DIVERGED)


def _note(site: Site, bar: StepBar, text: str) -> None:
    """A line for the person at the terminal, and for the site's log."""
    site.note(text)
    bar.note(text)
