"""Writes docs/reproduction.md and its figures from run folders, so that no number of a run there is typed by hand.

The words around them are in docs/reproduction.remarks.md, with the names of `facts` in braces for the numbers. The runs,
before ``python docs/reproduction.py``::

    docom compare synthetic --paper --seeds 3 --out out/synthetic
    docom compare synthetic --only dsgd,cedas,motef --seeds 3 --out out/synthetic
    docom compare mnist --seeds 3 --eval-every 50 --out out/mnist
    docom run synthetic --compressor C --gamma auto --seed S --out out/synthetic-auto/C-S
    docom run synthetic --paper OPTIONS --seed S --out out/synthetic-variants/NAME-S

the fourth one for topk:0.05 and quantize:4, the last one with the names and options of `VARIANTS` below, all for the seeds 0, 1,
2; and on a GPU::

    docom run femnist --device cuda --eval-every 4000 OPTIONS --seed S --out out/femnist/NAME/seed-S

with the names and options of `FEMNIST` below and the seeds 0, 1, 2 (0 where beta is small).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from docom import report
from docom.report import RunData

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
Group = dict[str, list[RunData]]


def groups(folder: Path) -> Group:
    """Runs by label, seeds together."""
    found: Group = {}
    for run in report.load([folder]):
        found.setdefault(run.summary["label"], []).append(run)
    return dict(sorted(found.items()))


def final(runs: list[RunData], key: str) -> list[float]:
    """The last value of a measure, seed by seed."""
    return [run.records[-1][key] for run in runs]


def spread(values: list[float], digits: int = 3) -> str:
    """Mean, and the range over seeds where there is one."""
    mean = sum(values) / len(values)
    text = f"{mean:.{digits}g}"
    if max(values) - min(values) < 10 ** (-digits) * abs(mean):
        return text
    return f"{text} ({min(values):.{digits}g} to {max(values):.{digits}g})"


def table(found: Group, keys: dict[str, tuple[str, Callable[[list[float]], str]]]) -> list[str]:
    """Final values, a row a method."""
    lines = ["| method | " + " | ".join(title for title, _ in keys.values()) + " |", "|" + "---|" * (len(keys) + 1)]
    for label, runs in found.items():
        lines.append(f"| {label} | " + " | ".join(show(final(runs, key)) for key, (_, show) in keys.items()) + " |")
    return lines


def percent(values: list[float]) -> str:
    """Accuracies."""
    return " / ".join(f"{100 * value:.1f}" for value in values)


def thousands(values: list[float]) -> str:
    """Counts."""
    return f"{values[0] / 1e3:,.0f}k"


def mega(values: list[float]) -> str:
    """Bits."""
    return f"{values[0] / 1e6:,.0f}"


COLUMNS: dict[str, tuple[str, Callable[[list[float]], str]]] = {
    "loss_worst": ("worst loss", lambda v: spread(v, 4)),
    "grad_norm_worst": ("worst gradient norm", spread),
    "consensus_gap": ("consensus gap", spread),
    "test_accuracy_worst": ("test accuracy, %, by seed", percent),
    "samples": ("samples", thousands),
    "bits": ("Mbit an agent", mega),
}


def ratio(found: Group, key: str, over: str, under: str) -> str:
    """How many times larger one method's final value is than another's, by seed."""
    pairs = zip(final(found[over], key), final(found[under], key), strict=True)
    return " / ".join(f"{a / b:.3g}" for a, b in pairs)


def below_from_a_tenth(found: Group, key: str, one: str, other: str) -> str:
    """Whether a measure is below another method's at every common budget of bits past a tenth of the run, by seed."""
    answers = []
    for a, b in zip(found[one], found[other], strict=True):
        limit = min(a.records[-1]["bits"], b.records[-1]["bits"])
        late = [record for record in a.records if 0.1 * limit <= record["bits"] <= limit]
        worse = [r["bits"] for r in late if r[key] > at_bits(b, key, r["bits"])]
        answers.append("yes" if not worse else f"at {100 * (1 - len(worse) / len(late)):.0f}% of the budgets")
    return " / ".join(answers)


def at_bits(run: RunData, key: str, bits: float) -> float:
    """A measure at a budget: the last record that keeps within it."""
    return [record[key] for record in run.records if record["bits"] <= bits][-1]


def samples_to(runs: list[RunData], loss: float) -> float:
    """Samples to a worst loss, mean over seeds."""
    needed = []
    for run in runs:
        reached = [record["samples"] for record in run.records if record["loss_worst"] <= loss]
        needed.append(reached[0] if reached else float("inf"))
    return sum(needed) / len(needed)


def figure(folder: Path, name: str) -> None:
    """The panels against bits, as the report draws them."""
    with tempfile.TemporaryDirectory() as temporary:
        report.write(report.load([folder]), Path(temporary))
        shutil.copy(Path(temporary) / "panels-by-bits.png", DOCS / "figures" / f"{name}.png")


VARIANTS = {
    "stale": ("copies of the round before, as in the authors' code", "--set order=stale"),
    "tensor": ("top-k tensor by tensor, as in the authors' code", "--compressor topk:0.05,scope=tensor"),
    "float64": ("as printed, in float64", "--dtype float64"),
}


def variants(out: Path) -> list[str]:
    """DoCoM with top-k and the paper's gamma in other ways, which all grow apart."""
    lines = ["| variant | options | consensus gap, by seed | smallest on the way, by seed |", "|---|---|---|---|"]
    for name, (label, options) in VARIANTS.items():
        runs = report.load(sorted((out / "synthetic-variants").glob(f"{name}-*")))
        least = [min(record["consensus_gap"] for record in run.records if record["step"] > 0) for run in runs]
        ends = " / ".join(f"{gap:.3g}" for gap in final(runs, "consensus_gap"))
        lines.append(f"| {label} | `{options}` | {ends} | {' / '.join(f'{gap:.3g}' for gap in least)} |")
    return lines


def synthetic(out: Path) -> list[str]:
    """The first experiment."""
    found, auto = groups(out / "synthetic"), groups(out / "synthetic-auto")
    figure(out / "synthetic", "synthetic")
    topk, bit4, choco, choco8 = "DoCoM, top-k 5%", "DoCoM, 4 bit", "CHOCO-SGD, top-k 10%", "CHOCO-SGD, 8 bit"
    level = 0.06
    rows = []
    for label in ("DoCoM, top-k 5%", "DoCoM, 4 bit", "GT-HSGD", "BEER, top-k 5%", "BEER, 4 bit"):
        rows.append(f"| {label} | {samples_to(found[label], level) / 1e3:,.0f}k |")
    return [
        "## Synthetic: linear classifier on LEAF's data",
        "",
        "`docom compare synthetic --paper --seeds 3`, and for what is ours "
        "`docom compare synthetic --only dsgd,cedas,motef --seeds 3`",
        "(25 agents, ring, 10,000 steps, float32, seeds 0 to 2). All step sizes here are the paper's or as in `presets.py`.",
        "Without `--paper` the preset takes the measured gamma (`auto`) for DoCoM and BEER with top-k 5%, since with the paper's",
        "their consensus gap grows (below): after 20,000 steps of seed 0 DoCoM's worst loss is then infinite.",
        "",
        "![synthetic](figures/synthetic.png)",
        "",
        *table(found, COLUMNS),
        "",
        "With the consensus step measured instead of the paper's (`--gamma auto`):",
        "",
        *table(auto, COLUMNS),
        "",
        "What the paper claims, seed by seed:",
        "",
        "| claim | top-k, the paper's gamma | top-k, gamma auto | 4 bit, the paper's gamma | 4 bit, gamma auto |",
        "|---|---|---|---|---|",
        "| CHOCO-SGD's consensus gap over DoCoM's at the end | "
        + " | ".join(
            ratio(found | {"DoCoM": runs}, "consensus_gap", other, "DoCoM")
            for runs, other in ((found[topk], choco), (auto[topk], choco), (found[bit4], choco8), (auto[bit4], choco8))
        )
        + " |",
        *(
            f"| DoCoM's {title} below CHOCO-SGD's at every budget past a tenth | "
            + " | ".join(
                below_from_a_tenth(found | {"DoCoM": runs}, key, "DoCoM", other)
                for runs, other in (
                    (found[topk], choco),
                    (auto[topk], choco),
                    (found[bit4], choco8),
                    (auto[bit4], choco8),
                )
            )
            + " |"
            for key, title in (("loss_worst", "worst loss"), ("grad_norm_worst", "worst gradient norm"))
        ),
        "",
        "The consensus gap of DoCoM with top-k 5% and the paper's gamma in other ways "
        "(`docom run synthetic --paper OPTIONS --seed S`):",
        "",
        *variants(out),
        "",
        f"Samples (of all agents) to a worst loss of {level}:",
        "",
        "| method | samples |",
        "|---|---|",
        *rows,
    ]


def mnist(out: Path) -> list[str]:
    """The second experiment."""
    found = groups(out / "mnist")
    figure(out / "mnist", "mnist")
    topk, choco = "DoCoM, top-k 5%", "CHOCO-SGD, top-k 10%"
    return [
        "## MNIST: 784-100-10 network, one class an agent",
        "",
        "`docom compare mnist --seeds 3 --eval-every 50` (10 agents, ring, 1,000 steps, float32, seeds 0 to 2; curves on 2,000",
        "samples, the last record on all 60,000 and all 10,000 test samples).",
        "",
        "![mnist](figures/mnist.png)",
        "",
        *table(found, COLUMNS),
        "",
        f"CHOCO-SGD's consensus gap over DoCoM's, by seed: {ratio(found, 'consensus_gap', choco, topk)}. "
        f"BEER's samples over DoCoM's: {ratio(found, 'samples', 'BEER, top-k 5%', topk).split(' / ')[0]}.",
    ]


FEMNIST = {
    "docom-topk-0.05": ("DoCoM, top-k 5%", ""),
    "choco-sgd-topk-0.1": ("CHOCO-SGD, top-k 10%", "--algorithm choco-sgd"),
    "beer-topk-0.05": ("BEER, top-k 5%", "--algorithm beer"),
    "gt-hsgd-none": ("GT-HSGD", "--algorithm gt-hsgd"),
    "gnsd-none": ("GNSD", "--algorithm gnsd"),
    "docom-beta-0.01": ("DoCoM, beta = 0.01", "--beta 0.01 --steps 20000"),
    "docom-beta-0.001": ("DoCoM, beta = 0.001", "--beta 0.001 --steps 20000"),
}
Records = list[dict[str, float]]


def records_of(folder: Path) -> list[Records]:
    """The records of a method's runs, seed by seed, whether they came to their end or not."""
    files = sorted(folder.glob("seed-*/metrics.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def femnist_figure(runs: dict[str, list[Records]]) -> None:
    """Accuracy, loss and gap against steps: the mean over seeds and their range."""
    from matplotlib.figure import Figure

    panels = {
        "test_accuracy_worst": "worst test accuracy",
        "loss_worst": "worst loss",
        "consensus_gap": "consensus gap",
    }
    drawn = Figure(figsize=(14, 4.2), layout="constrained")
    axes = drawn.subplots(1, 3)
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        for name, seeds in runs.items():
            by_step = [{record["step"]: record[key] for record in records if record["step"] > 0} for records in seeds]
            steps = sorted(set.intersection(*map(set, by_step)))
            if not steps:  # diverged before its first record
                continue
            values = [[found[step] for found in by_step] for step in steps]
            (line,) = axis.plot(steps, [sum(v) / len(v) for v in values], label=FEMNIST[name][0], linewidth=1.5)
            axis.fill_between(steps, list(map(min, values)), list(map(max, values)), color=line.get_color(), alpha=0.2)
        axis.set_title(title)
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
    axes[1].set_ylim(0.5, 3)
    axes[2].set_yscale("log")
    axes[0].legend(fontsize=8)
    drawn.savefig(DOCS / "figures" / "femnist.png", dpi=110)


def femnist(out: Path) -> list[str]:
    """The third experiment."""
    folders = {name: out / "femnist" / name for name in FEMNIST}
    runs = {name: records_of(folder) for name, folder in folders.items() if folder.is_dir()}
    femnist_figure(runs)
    lines = [
        "| method | options | seeds | steps | worst loss | consensus gap | worst test accuracy, %, by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, seeds in runs.items():
        label, options = FEMNIST[name]
        last = [records[-1] for records in seeds]
        loss, gap, accuracy = (
            [record[key] for record in last] for key in ("loss_worst", "consensus_gap", "test_accuracy_worst")
        )
        lines.append(
            f"| {label} | {f'`{options}`' if options else ''} | {len(seeds)} | {last[0]['step']:,} | {spread(loss)} | "
            f"{spread(gap)} | {percent(accuracy)} |"
        )
    return [
        "## FEMNIST: LeNet-5, 36 agents of writers",
        "",
        "`docom run femnist --device cuda --eval-every 4000 --seed S` and the options in the table (ring, float32, one H200; "
        "the real subset of 710 writers: 65,492 training and 7,627 test images).",
        "",
        "![femnist](figures/femnist.png)",
        "",
        *lines,
    ]


def at_step(runs: list[RunData], key: str, step: int) -> list[float]:
    """A measure after so many steps, seed by seed."""
    return [next(record[key] for record in run.records if record["step"] == step) for run in runs]


def between(values: Iterable[float], scale: float = 1.0, digits: int = 1) -> str:
    """``a to b``, or one number where that says it."""
    found = sorted(values)
    low, high = (f"{scale * value:,.{digits}f}" for value in (found[0], found[-1]))
    return low if low == high else f"{low} to {high}"


def times(over: list[float], under: list[float], digits: int = 0) -> str:
    """How many times larger, over seeds."""
    return between((a / b for a, b in zip(over, under, strict=True)), digits=digits)


def facts(out: Path) -> dict[str, str]:
    """The numbers that the remarks speak of."""
    found, auto, networks = groups(out / "synthetic"), groups(out / "synthetic-auto"), groups(out / "mnist")
    topk, bit4, choco, choco8 = "DoCoM, top-k 5%", "DoCoM, 4 bit", "CHOCO-SGD, top-k 10%", "CHOCO-SGD, 8 bit"
    cedas = "CEDAS, 8 bit, unbiased"
    gap, accuracy = "consensus_gap", "test_accuracy_worst"
    early, late, steps = at_step(found[topk], gap, 8000), final(found[topk], gap), 2000
    femnist = {name: [records[-1] for records in records_of(out / "femnist" / name)] for name in FEMNIST}

    def ends(name: str, key: str) -> list[float]:
        return [record[key] for record in femnist[name]]

    return {
        "gap_bits": times(final(found[choco8], gap), final(found[bit4], gap)),
        "gap_bits_auto": times(final(found[choco8], gap), final(auto[bit4], gap)),
        "gap_topk_auto": times(final(found[choco], gap), final(auto[topk], gap)),
        "gap_topk_early": times(at_step(found[choco], gap, 8000), early),
        "growth": between(((b / a) ** (1 / steps) for a, b in zip(early, late, strict=True)), digits=4),
        "gamma_auto": between((run.table("gamma")["gamma"] for run in auto[topk]), digits=3),
        "beer_samples": f"{samples_to(found['BEER, top-k 5%'], 0.06) / samples_to(found[topk], 0.06):.0f}",
        "cedas_bits": times(final(found[cedas], "bits"), final(found[topk], "bits"), 1),
        "mnist_docom": between(final(networks[topk], accuracy), 100),
        "mnist_choco": between(final(networks[choco], accuracy), 100),
        "mnist_cedas": between(final(networks[cedas], accuracy), 100),
        "mnist_cedas_bits": times(final(networks[cedas], "bits"), final(networks[topk], "bits"), 1),
        "mnist_beer_samples": times(final(networks["BEER, top-k 5%"], "samples"), final(networks[topk], "samples"), 1),
        "mnist_gap": times(final(networks[choco], gap), final(networks[topk], gap)),
        "femnist_docom": between(ends("docom-topk-0.05", accuracy), 100),
        "femnist_choco": between(ends("choco-sgd-topk-0.1", accuracy), 100),
        "femnist_beer": between(ends("beer-topk-0.05", accuracy), 100),
        "femnist_gap": times(ends("choco-sgd-topk-0.1", gap), ends("docom-topk-0.05", gap)),
        "femnist_gap_beer": times(ends("beer-topk-0.05", gap), ends("docom-topk-0.05", gap)),
        "femnist_bits": times(ends("gt-hsgd-none", "bits"), ends("docom-topk-0.05", "bits"), 1),
        "femnist_wild": f"{max(record['loss_worst'] for record in records_of(out / 'femnist' / 'docom-beta-0.01')[0][1:]):.1f}",
        "femnist_wild_until": f"{ends('docom-beta-0.01', 'step')[0]:,}",
    }


def main() -> None:
    """Read the runs, write the page around the hand-written remarks."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out"
    remarks = (DOCS / "reproduction.remarks.md").read_text().format(**facts(out)).split("<!-- next -->")
    parts = [
        remarks[0].strip(),
        "",
        *synthetic(out),
        "",
        remarks[1].strip(),
        "",
        *mnist(out),
        "",
        remarks[2].strip(),
        "",
        *femnist(out),
        "",
        remarks[3].strip(),
        "",
    ]
    (DOCS / "reproduction.md").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
