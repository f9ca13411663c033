"""Runs that are looked into, in the simulator and over processes; as a script, the processes' side.

``torchrun --nproc-per-node 3 tests/same_diagnosis.py FOLDER`` carries out every case in a folder of its name, and goes on with
those that it finds begun there. Every process leaves a note of how each case ended for it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from docom.config import RunConfig
from docom.runner import Outcome, execute
from docom.team import Team, join

AGENTS = 7
COMMON: dict[str, Any] = {
    "problem": {"name": "leaf-synthetic", "features": 12}, "agents": AGENTS, "topology": "erdos-renyi:0.4", "batch_size": 3,
    "steps": 30, "eval_every": 10, "exact": True, "threads": 1, "diagnose": True,
}  # fmt: skip
GOSSIP: dict[str, Any] = {"lr": 0.02, "gamma": 0.2}
RUNAWAY: dict[str, Any] = {
    "problem": {"name": "least-squares"}, "hyper": {"lr": 0.005, "gamma": 0.7, "beta": 0.1}, "compressor": "topk:0.1",
    "batch_size": 2, "steps": 600, "eval_every": 10, "diagnose": False, "stop_on_divergence": True,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "docom": {"hyper": GOSSIP | {"beta": 0.2}, "compressor": "topk:0.2"},
    "docom, fast": {"hyper": GOSSIP | {"beta": 0.2}, "compressor": "topk:0.2", "exact": False, "dtype": "float64"},
    "beer": {"hyper": GOSSIP, "compressor": "quantize:4"},
    "choco-sgd": {"hyper": GOSSIP, "compressor": "sign"},
    "gt-hsgd": {"hyper": {"lr": 0.02, "beta": 0.2}},
    "docom, runaway": RUNAWAY,
    "docom, resumed": RUNAWAY,
}
LEFT_AT = 57  # the step at which the last case is left by the simulator, between two records


def config(case: str) -> RunConfig:
    """The settings of a case, whose first word is its algorithm."""
    return RunConfig(case.partition(",")[0], **(COMMON | CASES[case]))


def carry_out(case: str, folder: Path, team: Team | None = None, progress: Any = None) -> Outcome:
    """Run it, or go on with it; with a progress, which may break it off, there is a checkpoint after every step."""
    seconds = 60 if progress is None else 0
    return execute(
        config(case), folder / case, folder, (folder / case).exists(), progress, checkpoint_seconds=seconds, team=team
    )


if __name__ == "__main__":
    where, processes = Path(sys.argv[1]), join(os.environ)
    for name in CASES:
        ended = carry_out(name, where, processes)
        note = {"status": ended.status, "advice": ended.advice, "step": ended.records[-1]["step"]}
        (where / f"{name} {processes.rank}.json").write_text(json.dumps(note))
    processes.leave()
