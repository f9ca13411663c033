"""Where methods with local steps settle when agents have different data: full gradients, least squares.

    python benchmarks/local_step_bias.py --json benchmarks/results/local_steps_bias.json

Prints and keeps the largest distance of an agent from the optimum, the best of several inner step sizes after 400 rounds, for
H = 1, 2, 5 and 10 local steps of SGD, and of AdamW with a constant and with a falling step size.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch

import docom
from docom.inner import SGD, AdamW, Inner
from docom.problems import LeastSquares

N, ROUNDS = 8, 400
COLUMNS = ("SGD, H = 1", "H = 2", "H = 5", "H = 10", "AdamW, H = 5", "AdamW, H = 5, lr falls")
METHODS: dict[str, tuple[docom.Algorithm, str]] = {
    "DiLoCo, momentum 0 (local SGD)": (docom.DiLoCo(lr=1.0, momentum=0.0), "none"),
    "DiLoCo": (docom.DiLoCo(lr=0.7, momentum=0.9), "none"),
    "NoLoCo": (docom.NoLoCo(), "none"),
    "GASLoC": (docom.GASLoC(gamma=1.0), "none"),
    "CHOCO-SGD (LoDAdaC)": (docom.ChocoSGD(lr=1.0, gamma=0.5), "topk:0.3"),
    "BEER on pseudo-gradients": (docom.BEER(lr=0.5, gamma=0.5), "topk:0.3"),
    "K-GT": (docom.KGT(), "none"),
    "LED": (docom.LED(mixing="lazy"), "none"),
    "ProxSkip": (docom.ProxSkip(), "none"),
    "compressed K-GT": (docom.CompressedKGT(gamma=0.5), "topk:0.3"),
}


def problem() -> LeastSquares:
    """Every agent has a solution of its own."""
    draw = np.random.default_rng(0)
    A = draw.normal(size=(N, 60, 10)) * (1 + 0.5 * draw.random(size=(N, 1, 10)))
    b = np.einsum("nmd,nd->nm", A, draw.normal(size=(N, 10)))
    return LeastSquares(torch.from_numpy(A), torch.from_numpy(b))


def error(method: docom.Algorithm, compressor: str, steps: int, inner: Inner) -> float:
    """The largest distance of an agent from the optimum after the last round; infinity where the run diverges."""
    data = problem()
    try:
        run = docom.simulate(
            data, method, topology="ring", compressor=compressor, steps=ROUNDS, eval_every=ROUNDS, dtype=torch.float64,
            inner=inner, local_steps=steps,
        )  # fmt: skip
    except FloatingPointError:
        return float("inf")
    return float((run.x - data.solution()).norm(dim=1).max())


def row(method: docom.Algorithm, compressor: str) -> list[float | None]:
    """A method's errors, by the columns."""
    found: list[float | None] = [
        min(error(method, compressor, h, SGD(lr=c / 3.3)) for c in (0.5, 0.2, 0.1, 0.05)) for h in (1, 2, 5, 10)
    ]
    if method.plain_inner:
        return [*found, None, None]
    constant = [AdamW(lr=lr, weight_decay=0.0) for lr in (0.03, 0.01)]
    falling = [AdamW(lr="inverse-sqrt:0.1", weight_decay=0.0)]
    return found + [min(error(method, compressor, 5, inner) for inner in some) for some in (constant, falling)]


def table(found: dict[str, list[float | None]]) -> str:
    """One row for each method."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
    for name, values in found.items():
        lines.append(f"| {name} | " + " | ".join("" if value is None else f"{value:.1g}" for value in values) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: row(*how) for name, how in METHODS.items()}
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps({"rounds": ROUNDS, "agents": N, "errors": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
