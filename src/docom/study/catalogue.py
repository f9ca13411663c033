"""The studies by name: what each asks, how it is run, small and in full, and where its findings go."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docom.names import nearest
from docom.study import influences, rates, recursion

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Study:
    """A question, the parts that answer it, and the sizes of each in full and for a quick look."""

    name: str
    question: str
    parts: Mapping[str, Callable[..., Rows]]
    quick: Mapping[str, Mapping[str, Any]]
    full: Mapping[str, Mapping[str, Any]]

    def run(self, device: str = "cpu", quick: bool = False) -> dict[str, Any]:
        """The findings as plain data: question, settings, seconds, rows of every part."""
        began = time.perf_counter()
        sizes = self.quick if quick else self.full
        parts = {name: part(device=device, **sizes.get(name, {})) for name, part in self.parts.items()}
        return {
            "study": self.name,
            "question": self.question,
            "sizes": {name: dict(size) for name, size in sizes.items()} or "as in the signatures",
            "device": device,
            "seconds": time.perf_counter() - began,
            **parts,
        }


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "potential",
            "(a) Do the potential's recursion and the theorem's bound hold along runs, and from states made to break them?",
            {"recursion": recursion.recursion, "beyond": recursion.beyond, "bound": recursion.bound},
            {
                "recursion": {"cases": 10, "runs": 32},
                "beyond": {"factors": (1, 10_000), "cases": 4, "runs": 32},
                "bound": {"cases": 2, "steps": 60, "runs": 16},
            },
            {},
        ),
        Study(
            "linear",
            "(b) With full gradients under the PL condition, does DoCoM converge linearly, at least as fast as predicted?",
            {"linear": rates.linear},
            {"linear": {"steps": 500, "runs": 2, "compressors": ("topk:0.2", "quantize:4", "sign")}},
            {},
        ),
        Study(
            "slopes",
            "(c) Does the average squared gradient norm fall like T^(-2/3) for DoCoM and like T^(-1/2) without momentum?",
            {"quadratic": rates.quadratic_slopes, "sigmoid": rates.sigmoid_slopes},
            {
                "quadratic": {"horizons": (64, 512, 8000), "runs": 5, "methods": rates.THREE},
                "sigmoid": {"horizons": (64, 512, 6400), "runs": 3, "methods": rates.THREE[:2]},
            },
            {},
        ),
        Study(
            "heterogeneity",
            "(d) Is DoCoM's error independent of how much the agents' data differ, and CHOCO-SGD's and DSGD's not?",
            {"heterogeneity": influences.heterogeneity},
            {"heterogeneity": {"levels": (0.1, 10.0), "T": 1000, "runs": 4}},
            {},
        ),
        Study(
            "network",
            "(e) Does the influence of network and compressor vanish as T grows?",
            {"network": influences.network_and_compressor},
            {"network": {"horizons": (100, 2000), "runs": 3}},
            {},
        ),
        Study(
            "speed-up",
            "(f) Does the variance term fall like 1/n?",
            {"speed_up": influences.speed_up},
            {"speed_up": {"agents": (2, 8, 32), "T": 800, "runs": 6, "topologies": ("ring",)}},
            {},
        ),
    )
}


def find(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise nearest("study", name, STUDIES)
    return STUDIES[name]


def write(findings: dict[str, Any], folder: Path) -> list[Path]:
    """Put the findings and their figure into a folder, as theory-NAME.json and theory-NAME.png."""
    from docom.study.figures import draw

    folder.mkdir(parents=True, exist_ok=True)
    stem = f"theory-{findings['study']}"
    data, figure = folder / f"{stem}.json", folder / f"{stem}.png"
    for path, save in (
        (data, lambda to: to.write_text(json.dumps(findings, indent=1) + "\n")),
        (figure, lambda to: draw(findings).savefig(to, format="png", dpi=110)),
    ):
        temporary = path.with_name(f"{path.name}.tmp")
        save(temporary)
        os.replace(temporary, path)
    return [data, figure]
