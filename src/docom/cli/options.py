"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WALK = "Local steps"
MEASURING = "Evaluations and the end of a run"
PLACE = "Where and how it runs"
FILES = "Files"


def option(name: str, text: str, least: int | None = None, panel: str | None = None) -> typer.models.OptionInfo:
    """A flag whose default is described in its text."""
    return typer.Option(name, help=text, show_default=False, min=least, rich_help_panel=panel)  # type: ignore[no-any-return]


def _load_plugins(context: typer.Context, files: list[Path] | None) -> list[Path] | None:
    """Load what is installed and what is given, before anything is looked up by its name."""
    if not context.resilient_parsing:  # as shells do to complete a line
        from docom import plugins

        plugins.load_installed()
        for file in files or []:
            plugins.load(file)
    return files


Out = Annotated[Path | None, option("--out", "Folder for the results.", panel=FILES)]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Remove what runs left in the folder; only docom's own files.", rich_help_panel=FILES
    ),
]
TensorBoard = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Write event files for TensorBoard too, beside the records.", rich_help_panel=FILES
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", help="Python file with methods, compressors, problems or presets of your own (repeatable).",
        show_default=False, callback=_load_plugins, rich_help_panel=FILES,
    ),
]  # fmt: skip
Experiment = Annotated[
    str, typer.Argument(metavar="PRESET|FILE", help="A preset (synthetic, mnist, femnist) or a YAML file.")
]
Algorithm = Annotated[str | None, option("--algorithm", "Method (see `docom list`); DoCoM if left out.")]
Compressor = Annotated[str | None, option("--compressor", "For example topk:0.05, quantize:4, none.")]
Topology = Annotated[str | None, option("--topology", "For example ring, torus, erdos-renyi:0.3.")]
Weights = Annotated[str | None, option("--weights", "uniform, metropolis, lazy or max-degree.")]
Agents = Annotated[int | None, option("--agents", "Number of agents.", 1)]
Steps = Annotated[int | None, option("--steps", "Number of steps; with local steps, of rounds of messages.", 0)]
Rate = Annotated[str | None, option("--lr", "Step size, with local steps the outer one: a number or a schedule.")]
Gamma = Annotated[str | None, option("--gamma", 'Consensus step: a number, a schedule or "auto".')]
Beta = Annotated[str | None, option("--beta", "Weight of the fresh gradient.")]
Batch = Annotated[int | None, option("--batch-size", "Samples drawn per agent and step; 0 for all of its data.", 0)]
Seed = Annotated[int | None, option("--seed", "Seed of everything random.", 0)]
Device = Annotated[str | None, option("--device", "cpu or cuda.", panel=PLACE)]
Dtype = Annotated[str | None, option("--dtype", "float32 or float64.", panel=PLACE)]
Every = Annotated[int | None, option("--eval-every", "Steps between evaluations.", 1, panel=MEASURING)]
Until = Annotated[str | None, option("--until", "Stop early, for example 'loss_worst<=0.05'.", panel=MEASURING)]
Data = Annotated[Path | None, option("--data", "Data folder; else $DOCOM_DATA, else the user's cache.", panel=FILES)]
Inner = Annotated[
    str | None,
    option("--inner", "Inner optimizer, for local steps: adamw:lr=1e-3, sgd:lr=0.1, ...; none for none.", panel=WALK),
]
LocalSteps = Annotated[
    str | None,
    option("--local-steps", "Inner steps between two messages: a number, or one for each agent: 10,20,30.", panel=WALK),
]
Overlap = Annotated[int | None, option("--overlap", "Inner steps that are taken while messages travel.", 0, panel=WALK)]
Hyper = Annotated[list[str] | None, option("--set", "Any other setting of the method, as name=value (repeatable).")]
Samples = Annotated[
    int | None,
    option(
        "--eval-samples", "Evaluate on a fixed subset, in full at the end; 0 for always in full.", 0, panel=MEASURING
    ),
]
GradEvery = Annotated[
    int | None,
    option("--grad-every", "Steps between gradient norms, the costly part of an evaluation.", 1, panel=MEASURING),
]
Threads = Annotated[
    int | None,
    option("--threads", "CPU threads; by default torch's. Take 1 for several runs at the same time.", 1, panel=PLACE),
]
