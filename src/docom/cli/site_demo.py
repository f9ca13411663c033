"""What `docom site demo` does: four sites on this machine, with real keys and connections; one is killed and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from docom import watch as pages
from docom.cli.commands import say
from docom.runfolder import write_whole
from docom.sites import make_keys
from docom.sites.now import read as read_now
from docom.watch.picture import draw, photograph

NAMES = ("basel", "bern", "chur", "davos")
REACHED = ("basel", "chur")  # the others can only open connections
KILLED = "chur"
MARK = "docom-site-demo"  # a file that says that the folder was made here
PATIENCE = 2.5  # seconds after which the others go on without a silent site
AWAY = 8.0  # seconds
RUN: dict[str, Any] = {
    "preset": "synthetic", "algorithm": "compressed-k-gt", "compressor": "topk:0.1", "batch_size": 10, "local_steps": 20,
    "hyper": {"lr": 1.0, "gamma": 0.15}, "inner": {"name": "sgd", "lr": 0.05},
}  # fmt: skip
LONGEST = 600.0  # seconds until the demonstration gives up
LOOK = 0.2
HEIGHT = 1500


def demo(folder: Path, steps: int) -> None:
    """See `docom.cli.site_app.site_demo`."""
    _make(folder, steps)
    began = time.monotonic()
    going = {name: _start(folder, name) for name in NAMES}
    page: subprocess.Popen[str] | None = None
    try:
        say(
            f"{', '.join(NAMES)}: four sites with keys of their own, in a ring, over encrypted connections of this machine"
        )
        _wait(lambda: all(_round(folder, name) > 0 for name in NAMES), going, began)
        page = _watch(folder)
        _wait(lambda: _round(folder, KILLED) >= steps // 3, going, began)
        going[KILLED].kill()
        going[KILLED].wait()
        say(f"round {_round(folder, KILLED)}: {KILLED} was killed, as if its machine had lost power")
        time.sleep(AWAY)
        others = [name for name in NAMES if name != KILLED]
        say(f"after {AWAY:g} s without {KILLED}: " + "; ".join(f"{name} {_doing(folder, name)}" for name in others))
        going[KILLED] = _start(folder, KILLED)
        say(f"{KILLED} is started again with the same command, and continues from its last checkpoint")
        _wait(lambda: all(process.poll() is not None for process in going.values()), going, began)
    finally:
        _end([*going.values(), *filter(None, [page])])
    _tell(folder, began)


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            process.kill()


def _make(folder: Path, steps: int) -> None:
    """The members' file and the keys; what an earlier demonstration has left is removed."""
    if folder.exists():
        if not (folder / MARK).is_file() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} holds files that are not of this demonstration; choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("made by docom site demo, which removes this folder when it is run again\n")
    members: list[dict[str, str]] = []
    for name, port in zip(NAMES, _free_ports(len(NAMES)), strict=True):
        member = {"name": name, "key": make_keys(name, folder / "keys")[1]}
        members.append(member | ({"address": f"127.0.0.1:{port}"} if name in REACHED else {}))
    run = RUN | {"steps": steps, "eval_every": max(1, steps // 60)}
    content = {
        "name": "four-sites", "members": members, "topology": "ring", "mode": "skip", "patience": PATIENCE, "heartbeat": 1,
        "run": run,
    }  # fmt: skip
    write_whole(folder / "federation.yaml", yaml.safe_dump(content, sort_keys=False).encode())


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _start(folder: Path, name: str) -> subprocess.Popen[str]:
    """A site, as its owner would start it; what it says goes into a file."""
    command = [sys.executable, "-m", "docom", "site", "run", str(folder / "federation.yaml"), "--as", name]
    with (folder / f"{name}.out").open("a") as out:
        return subprocess.Popen([*command, "--checkpoint-seconds", "1"], stdout=out, stderr=out, text=True)


def _watch(folder: Path) -> subprocess.Popen[str]:
    """The page of all four, whose address is printed."""
    command = [sys.executable, "-m", "docom", "site", "watch", str(folder)]
    for port in (pages.PORT, 0):
        try:
            pages.listen(port).close()
        except OSError:
            continue
        break
    return subprocess.Popen([*command, "--port", str(port)], text=True)


def _wait(until: Callable[[], bool], going: dict[str, subprocess.Popen[str]], began: float) -> None:
    while not until():
        for name, process in going.items():
            if process.poll() not in (None, 0):
                raise OSError(f"{name} has ended with status {process.returncode}; see {name}.out in the folder")
        if time.monotonic() > began + LONGEST:
            raise OSError(
                f"the sites have not finished after {LONGEST:.0f} s; this machine may be too busy, try fewer --steps"
            )
        time.sleep(LOOK)


def _round(folder: Path, name: str) -> int:
    return int(read_now(folder / name).get("round", 0))


def _doing(folder: Path, name: str) -> str:
    """What a site does now, as the page says it."""
    (site,) = (site for site in pages.look(pages.find(folder / name))["sites"] if site["name"] == name)
    return f"is in round {site['round']}, {site['status']}"


def _tell(folder: Path, began: float) -> None:
    state = pages.look(pages.find(folder))
    for site in state["sites"]:
        total = sum(site["seconds"].values()) or 1.0
        shares = ", ".join(f"{kind} {100 * seconds / total:.0f}%" for kind, seconds in site["seconds"].items())
        say(f"{site['name']} {site['status']}, round {site['round']}: {shares}")
    for curve in state["curves"]["loss"]:
        who, first, last = ", ".join(curve["sites"]), curve["y"][0], curve["y"][-1]
        say(f"{who}: loss {first:.4g} at the start, {last:.4g} at the end")
    page, picture = folder / "page.html", folder / "page.png"
    write_whole(page, pages.render(state).encode())
    if not photograph(page, picture, HEIGHT):
        draw(state, picture)
    say(f"{time.monotonic() - began:.0f} s; the page as it ended: {page}, its picture: {picture}")
