"""What a run took, from its folder, to compare it with its plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docom.config import parse_yaml
from docom.planning.candidates import Setting, kind_of
from docom.planning.pricing import DAY, with_sizes
from docom.runfolder import RunFolder
from docom.sites import journal

NOTHING = {"computing": 0.0, "waiting": 0.0, "bytes": 0}


@dataclass(frozen=True)
class Measured:
    """A run as it was.

    seconds: of a round. computing: the share of them on gradients and all else that is no waiting; None if it is not known.
    bytes_per_day: that an agent has sent; None if it is not known. gradients: of a round.
    """

    setting: Setting
    rounds: int
    seconds: float
    computing: float | None
    bytes_per_day: float | None
    gradients: int
    where: str

    @property
    def step(self) -> float | None:
        """Seconds of a gradient on this machine."""
        return None if self.computing is None else self.computing * self.seconds / self.gradients


def measured(folder: Path) -> Measured:
    """A run from its folder: that of a site, or of `docom run`.

    Raises:
        ValueError: it holds no run that has come anywhere.
    """
    files = RunFolder(folder)
    config = parse_yaml(files.config() or "")
    if not isinstance(config, dict) or "algorithm" not in config:
        raise ValueError(f"{folder} holds no config.yaml of a run; give the folder of a site or of `docom run`")
    steps = config.get("local_steps") if config.get("inner") else 0
    if not isinstance(steps, int | None):
        raise ValueError(f"{folder}: its agents take different numbers of local steps, which a plan does not know")
    setting = Setting(
        str(config["algorithm"]), str(config.get("compressor") or "none"), steps if config.get("inner") and steps else 0,
        str(config.get("topology") or "ring"),
    )  # fmt: skip
    found = _of_site(folder, setting) or _of_records(files, setting)
    if found is None:
        raise ValueError(f"{folder} holds no round that was finished")
    return found


def _of_site(folder: Path, setting: Setting) -> Measured | None:
    """From the totals of a site. Every start counts, from its first totals on: before them it waits for others to start.

    A start whose totals are all of one round counts as a whole.
    """
    rounds, spent, waited, sent = 0, 0.0, 0.0, 0.0
    parts: list[tuple[dict[str, Any], dict[str, Any]]] = []
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    before = {"round": 0}  # of the last start
    for event in [*journal.read(folder), {"kind": "started"}]:
        if event["kind"] == "started":
            if first is not None and last is not None:
                parts.append((NOTHING | before if first["round"] == last["round"] else first, last))
            before = {"round": last["round"]} if last is not None else before
            first = last = None
        elif event["kind"] == "totals" and event.get("round", 0) > 0:
            first, last = first or event, event
    for begin, end in parts:
        rounds += int(end["round"]) - int(begin["round"])
        spent += float(end["computing"]) - float(begin["computing"])
        waited += float(end["waiting"]) - float(begin["waiting"])
        sent += float(end["bytes"]) - float(begin["bytes"])
    seconds = spent + waited
    if rounds < 1 or seconds <= 0:
        return None
    return Measured(
        setting,
        rounds,
        seconds / rounds,
        spent / seconds,
        DAY * sent / seconds,
        _gradients(setting),
        "events of a site",
    )


def _of_records(files: RunFolder, setting: Setting) -> Measured | None:
    """From the records of a run; of a simulated one, by its clock."""
    records = files.before(1 << 62)
    if len(records) < 2:
        return None
    first, last = records[0], records[-1]
    rounds, key = int(last["step"] - first["step"]), "clock" if "clock" in last else "seconds"
    seconds = float(last[key] - first[key])
    if rounds < 1 or seconds <= 0:
        return None
    clock = (files.summary() or {}).get("clock")
    share = None
    if key == "clock" and isinstance(clock, dict) and last["clock"] > 0:
        share = sum(clock["computing"]) / len(clock["computing"]) / float(last["clock"])
    agents = (files.summary() or {}).get("agents")
    wire = last.get("wire_bytes", 0.0) - first.get("wire_bytes", 0.0)
    sent = DAY * wire / agents / seconds if isinstance(agents, int) and agents else None
    return Measured(setting, rounds, seconds / rounds, share, sent, _gradients(setting), f"{key} of its records")


def _gradients(setting: Setting) -> int:
    return setting.batches * with_sizes(kind_of(setting.algorithm), setting).points_per_step
