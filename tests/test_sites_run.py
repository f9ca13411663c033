"""`docom site run` in real processes: the simulator's numbers, also when sites are killed, stopped and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from docom.cli.sites import configured
from docom.runner import execute
from docom.sites import Site, journal
from launching import start
from sites import federation

pytest.importorskip("zmq")
NAMES = ("a", "b", "c")
STEPS = 400
RUN = {
    "preset": "synthetic", "algorithm": "docom", "compressor": "topk:0.1", "steps": STEPS, "eval_every": 20, "exact": True,
    "problem": {"name": "leaf-synthetic", "features": 40, "classes": 4},
}  # fmt: skip


def site_run(path: Path, name: str, *more: str) -> subprocess.Popen[str]:
    arguments = [
        sys.executable,
        "-m",
        "docom",
        "site",
        "run",
        str(path),
        "--as",
        name,
        "--checkpoint-seconds",
        "0",
        *more,
    ]
    return start(arguments)


def ended(process: subprocess.Popen[str], seconds: float = 200) -> tuple[int, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out + err


def reached(folder: Path, step: int) -> bool:
    """Whether a site has measured this step."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return any(json.loads(line)["step"] >= step for line in lines if line.endswith("}"))


def wait_until(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    while not reached(folder, step):
        assert process.poll() is None, ended(process)
        time.sleep(0.02)


def rows(folder: Path) -> dict[str, torch.Tensor]:
    """The rows of the agents of a run in its last checkpoint."""
    (path,) = (folder / "checkpoint" / f"step-{STEPS}").glob("agents-*.safetensors")
    return load_file(path)


def simulated(path: Path, folder: Path) -> dict[str, Any]:
    """The same run in this process."""
    config = replace(configured(Site(path, "a")), topology="complete")
    outcome = execute(config, folder, folder / "data", checkpoint_seconds=0)
    return {"rows": rows(folder), "records": outcome.records}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sites_compute_what_the_simulator_computes_though_some_are_killed_or_stopped(tmp_path: Path) -> None:
    path = federation(
        tmp_path, NAMES, reachable=("a", "b"), run=RUN, links=[["a", "b"], ["b", "c"], ["a", "c"]], patience=120
    )
    going = {name: site_run(path, name) for name in ("c", "a", "b")}
    wait_until(tmp_path / "b", 60, going["b"])
    going["b"].send_signal(signal.SIGKILL)
    going["b"].communicate()
    going["c"].send_signal(signal.SIGINT)
    status, said = ended(going["c"])
    assert status == 130, said
    assert "continues" in said
    going |= {name: site_run(path, name) for name in ("b", "c")}
    for name in NAMES:
        status, said = ended(going[name])
        assert status == 0, f"{name}: {said}"
        assert f"finished after {STEPS}" in said
    reference = simulated(path, tmp_path / "simulated")
    for agent, name in enumerate(NAMES):
        found = rows(tmp_path / name)
        assert found.keys() == reference["rows"].keys()
        for key, row in found.items():
            assert torch.equal(row[0], reference["rows"][key][agent]), f"{key} of {name}"
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [record["step"] for record in records] == [record["step"] for record in reference["records"]]
        for mine, theirs in zip(records, reference["records"], strict=True):
            assert mine["loss_worst"] == pytest.approx(theirs["loss_worst"], rel=1e-5)
            assert mine["wire_bytes"] == theirs["wire_bytes"]
    log = (tmp_path / "a" / "site.log").read_text()
    assert "lost the connection to b" in log or "which has restarted" in log
    again, said = ended(site_run(path, "b"))
    assert again == 0, said
    assert f"finished after {STEPS}" in said, "a run that has ended is not run again"
    check_events(tmp_path / "a", path)


def check_events(folder: Path, path: Path) -> None:
    """The events of a site whose neighbour was killed for a while, and that has waited for it."""
    found = journal.read(folder)
    assert {"time", "round", "kind", "peer"} <= set.intersection(*(set(event) for event in found))
    kinds = [event["kind"] for event in found]
    assert (kinds[0], found[0]["mode"]) == ("started", "wait")
    assert {"connected", "lost", "waiting", "computing"} <= set(kinds)
    assert {event["peer"] for event in found if event["kind"] == "waiting"} <= {"b", "c"}
    assert [event["round"] for event in found] == sorted(event["round"] for event in found)
    assert kinds[-2:] == ["totals", "ended"]
    assert (found[-1]["round"], found[-1]["why"]) == (STEPS - 1, "finished")
    spent = found[-2]["computing"] + found[-2]["waiting"]
    assert spent == pytest.approx(found[-1]["time"] - found[0]["time"], abs=1.0)
    assert found[-2]["bytes"] > 0
    with (folder / journal.FILE).open("a") as file:
        file.write('{"time": 1, "kind": "wai')
    assert journal.read(folder) == found, "a last line that is not complete is left out"
