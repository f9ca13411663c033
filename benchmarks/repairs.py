"""What the two repairs of lost messages cost: steps, bytes on the wire and memory, for DoCoM with top-k 20%.

    python benchmarks/repairs.py

"resend" keeps public copies and sends again what is not acknowledged; "edges" keeps two copies per link. Prints two tables and
keeps them, with all figures, in ``benchmarks/results/repairs.md`` and ``repairs.json``.

* Steps until every agent is within 1e-6 of the optimum (least squares, 8 agents with solutions of their own, full gradients,
  d = 20), and the bytes that all have sent by then, over those of the run without losses; "never": not in 900 steps.
* The vectors that an agent keeps for its two variables, in multiples of d (d = 4,000), the most after any of 60 steps.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import docom
from docom.experiment import Experiment
from docom.problems import LeastSquares

RESULTS = Path(__file__).parent / "results"
TOPOLOGIES = ("ring", "torus", "complete")
LOSSES = (0.01, 0.1, 0.3)
REPAIRS = ("resend", "edges")
AGENTS, STEPS, CLOSE = 8, 900, 1e-6
METHOD = docom.DoCoM(lr=0.035, gamma=0.5, beta=0.1)


def problem(samples: int, dimension: int) -> LeastSquares:
    """Every agent has a solution of its own."""
    draw = np.random.default_rng(0)
    A = draw.normal(size=(AGENTS, samples, dimension)) * (1 + draw.random(size=(AGENTS, 1, dimension)))
    target = draw.normal(size=(AGENTS, dimension)) * 3.0
    b = np.einsum("nmd,nd->nm", A, target) + draw.normal(size=(AGENTS, samples))
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


def begun(data: LeastSquares, topology: str, conditions: dict[str, Any]) -> Any:
    """A run before its first step."""
    return Experiment(
        data, METHOD, topology=topology, compressor="topk:0.2", conditions=conditions, dtype=torch.float64
    ).begin()


def until_close(topology: str, conditions: dict[str, Any]) -> tuple[int, int] | None:
    """The step after which all agents are close to the optimum, and the bytes sent by then; None if they never are."""
    data = problem(30, 20)
    training, optimum = begun(data, topology, conditions), data.solution()
    for step in range(1, STEPS + 1):
        try:
            training.take_step()
        except FloatingPointError:
            return None
        if float((training.state.x - optimum).norm(dim=1).max()) <= CLOSE:
            return step, training.channels.wire_bytes
    return None


def memory(topology: str, conditions: dict[str, Any]) -> float:
    """The most that channels have kept after a step, in rows of d numbers of 8 bytes per agent."""
    data, most = problem(2, 4000), 0
    training = begun(data, topology, conditions)
    for _ in range(60):
        training.take_step()
        kept = {
            rows.untyped_storage().data_ptr(): rows.untyped_storage().nbytes()
            for rows in training.channels.rows().values()
        }
        most = max(most, sum(kept.values()))
    return most / (AGENTS * data.dimension * 8)


def main() -> None:
    """Both tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"method": str(METHOD), "compressor": "topk:0.2", "agents": AGENTS, "runs": []}
    lines = [
        "Made by `python benchmarks/repairs.py`: DoCoM, top-k 20%, 8 agents.",
        "",
        "| graph | loss | steps, resend | steps, edges | bytes, resend | bytes, edges | memory, resend | memory, edges |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for topology in TOPOLOGIES:
        plain = until_close(topology, {})
        assert plain is not None, "without losses it converges"
        steps, sent = plain
        rows = memory(topology, {})
        found["runs"].append({"topology": topology, "loss": 0, "steps": steps, "bytes": sent, "memory": rows})
        lines.append(f"| {topology} | 0 | {steps} | {steps} | 1 | 1 | {rows:.1f} d | {rows:.1f} d |")
        for loss in LOSSES:
            cells = []
            for repair in REPAIRS:
                conditions = {"loss": loss, "repair": repair}
                now = until_close(topology, conditions)
                kept = memory(topology, conditions)
                shown = ("never", "") if now is None else (str(now[0]), f"{now[1] / sent:.2f}")
                cells.append((*shown, f"{kept:.1f} d"))
                at = {"topology": topology, "loss": loss, "repair": repair, "memory": kept}
                found["runs"].append(at | ({} if now is None else {"steps": now[0], "bytes": now[1]}))
            both = " | ".join(" | ".join(pair) for pair in zip(*cells, strict=True))
            lines.append(f"| {topology} | {loss:g} | {both} |")
            print(lines[-1], flush=True)
    print("\n".join(lines))
    (RESULTS / "repairs.md").write_text("\n".join(lines) + "\n")
    (RESULTS / "repairs.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
