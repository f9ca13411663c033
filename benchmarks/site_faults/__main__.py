"""Random faults: ``python -m benchmarks.site_faults --schedules 20``.

Five sites as processes on this machine, over loopback with real keys; a sixth one may join. A schedule is drawn from its seed
(0, 1, ...). A run passes if nobody hangs, all sites that were not killed for good end by themselves, and their last losses are
within 1% of an undisturbed run's. Results are written after each schedule; those that are in the file already are left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.files import write_json
from benchmarks.site_faults.processes import ROOT, run, undisturbed
from benchmarks.site_faults.schedules import NAMES, drawn

RESULTS = ROOT / "benchmarks" / "results" / "site_faults.json"
WITHIN = 0.01


def one(seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """What became of a schedule."""
    faults, began = drawn(seed), time.monotonic()
    found: dict[str, Any] = {"faults": [str(fault) for fault in faults]}
    wanted = undisturbed(folder, rounds)
    try:
        sites = run(folder, faults, rounds)
    except TimeoutError as error:
        return found | {"passed": False, "why": str(error)}
    here = [who for who in sites.going if who not in sites.gone]
    status = {NAMES[who]: sites.going[who].returncode for who in here}
    losses = {NAMES[who]: sites.loss(who) for who in here}
    worst = max(abs(loss / wanted - 1) for loss in losses.values())
    times = sites.times(0)
    found |= {"undisturbed": wanted, "losses": losses, "status": status, "worst": worst, "times of the first": times}
    return found | {
        "passed": worst <= WITHIN and not any(status.values()),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """All schedules, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for seed in range(given.first, given.first + given.schedules):
        if str(seed) in results:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results[str(seed)] = one(seed, given.rounds, Path(folder))
        write_json(given.out, results)
        now = results[str(seed)]
        print(f"{seed}: {'passed' if now['passed'] else 'FAILED'}: {', '.join(now['faults'])}", flush=True)
    failed = [seed for seed, found in results.items() if not found["passed"]]
    print(
        f"{len(results) - len(failed)} of {len(results)} schedules passed" + (f"; failed: {failed}" if failed else "")
    )
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
