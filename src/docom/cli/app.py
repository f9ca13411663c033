"""The commands and their flags."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from docom.cli.condition_options import Conditions, with_conditions
from docom.cli.data_app import data_app
from docom.cli.options import (
    FILES,
    MEASURING,
    PLACE,
    Agents,
    Algorithm,
    Batch,
    Beta,
    Compressor,
    Data,
    Device,
    Dtype,
    Every,
    Experiment,
    Gamma,
    GradEvery,
    Hyper,
    Inner,
    LocalSteps,
    Out,
    Overlap,
    Overwrite,
    Plugins,
    Rate,
    Samples,
    Seed,
    Steps,
    TensorBoard,
    Threads,
    Topology,
    Until,
    Weights,
    option,
)
from docom.cli.site_app import site_app

app = typer.Typer(
    name="docom",
    help="Decentralised optimisation with compressed communication.",
    epilog="Exit status: 0 done; 1 some runs of a comparison failed; 2 wrong usage or a run that failed; "
    "3 a run that diverged; 130 interrupted (a run is saved first; --resume continues it).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        from docom import __version__

        typer.echo(f"docom {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Decentralised optimisation with compressed communication."""


app.add_typer(data_app, name="data")
app.add_typer(site_app, name="site")

CONSTANTS = "What is known of the problem"
JUDGED = "Step sizes to judge"


@app.command()
@with_conditions
def run(
    what: Experiment,
    algorithm: Algorithm = None,
    compressor: Compressor = None,
    topology: Topology = None,
    weights: Weights = None,
    agents: Agents = None,
    steps: Steps = None,
    lr: Rate = None,
    gamma: Gamma = None,
    beta: Beta = None,
    inner: Inner = None,
    local_steps: LocalSteps = None,
    overlap: Overlap = None,
    batch_size: Batch = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's step sizes, also where long runs with them diverge.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Bits that agree with runs of real processes.", rich_help_panel=PLACE)
    ] = False,
    eval_every: Every = None,
    eval_samples: Samples = None,
    grad_every: GradEvery = None,
    until: Until = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Record the proof's potential, invariants, observed delta; warn.",
            rich_help_panel=MEASURING,
        ),
    ] = False,
    stop_on_divergence: Annotated[
        bool,
        typer.Option(
            "--stop-on-divergence",
            help="Stop once the run is seen to diverge; implies --diagnose.",
            rich_help_panel=MEASURING,
        ),
    ] = False,
    hyper: Hyper = None,
    conditions: Conditions = None,
    data: Data = None,
    threads: Threads = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out.", rich_help_panel=FILES)
    ] = False,
    overwrite: Overwrite = False,
    tensorboard: TensorBoard = False,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(
            "--checkpoint-seconds", help="Time between checkpoints; 0 for one every step.", min=0, rich_help_panel=FILES
        ),
    ] = 60,
    backend: Annotated[
        str | None,
        option(
            "--backend", "Of a run in several processes: gloo, nccl or mpi; by the device if left out.", panel=PLACE
        ),
    ] = None,
    peer_timeout: Annotated[
        float,
        typer.Option(
            "--peer-timeout", help="Longest time to wait for another process, in seconds.", rich_help_panel=PLACE
        ),
    ] = 300,
    plugin: Plugins = None,
) -> None:
    """Run one method. What is not given comes from the preset's tuned values for that method and kind of compressor.

    Exit status: 0, or 2 after an error, 3 for a run that has diverged, 130 for one that was interrupted.
    """
    from docom.cli import commands

    given = {
        "topology": topology, "weights": weights, "agents": agents, "steps": steps, "batch_size": batch_size,
        "seed": seed, "device": device, "dtype": dtype, "exact": exact or None, "eval_every": eval_every,
        "eval_samples": eval_samples, "grad_every": grad_every, "until": until, "threads": threads,
        "diagnose": diagnose or None, "stop_on_divergence": stop_on_divergence or None,
        **commands.walk(inner, local_steps, overlap),
        "conditions": conditions,
    }  # fmt: skip
    rates = {"lr": lr, "gamma": gamma, "beta": beta}
    launch = commands.Launch(out, resume, checkpoint_seconds, _command(), backend, peer_timeout, overwrite, tensorboard)
    commands.run(what, algorithm, compressor, given, rates, hyper or [], data, launch, paper)


@app.command()
@with_conditions
def compare(
    what: Experiment = "synthetic",
    seeds: Annotated[int | None, option("--seeds", "How many seeds, from 0 on; 1, or what the file says.", 1)] = None,
    steps: Steps = None,
    eval_every: Every = None,
    only: Annotated[str | None, option("--only", "Methods to run, separated by commas.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The settings the paper itself gives, with its step sizes.")
    ] = False,
    inner: Inner = None,
    local_steps: LocalSteps = None,
    overlap: Overlap = None,
    conditions: Conditions = None,
    jobs: Annotated[
        int | None, option("--jobs", "Runs at a time; the number of cores if left out.", 1, panel=PLACE)
    ] = None,
    device: Device = None,
    data: Data = None,
    out: Out = None,
    overwrite: Overwrite = False,
    tensorboard: TensorBoard = False,
    plugin: Plugins = None,
) -> None:
    """Run all settings of a preset, or of the compare: section of a file, in parallel. Ends with a table and a report.

    What is done already is not run again.
    """
    from docom.cli import commands, comparison

    names = None if only is None else [name.strip() for name in only.split(",")]
    overrides = commands.walk(inner, local_steps, overlap) | {"conditions": conditions}
    comparison.compare(
        what, seeds, steps, eval_every, names, paper, jobs, device, data, out, _command(), overwrite, tensorboard,
        overrides,
    )  # fmt: skip


@app.command()
@with_conditions
def tune(
    what: Experiment,
    algorithm: Algorithm = None,
    compressor: Compressor = None,
    grid: Annotated[
        list[str] | None, option("--grid", "Values to try instead of the paper's, as name=v1,v2,... (repeatable).")
    ] = None,
    inner: Inner = None,
    local_steps: LocalSteps = None,
    overlap: Overlap = None,
    conditions: Conditions = None,
    trials: Annotated[int | None, option("--trials", "Try so many points of the grid, drawn; else all.", 1)] = None,
    steps: Steps = None,
    seed: Seed = None,
    device: Device = None,
    threads: Threads = None,
    data: Data = None,
    out: Out = None,
    plugin: Plugins = None,
) -> None:
    """Search the paper's grids for a method's step sizes by the final worst loss; saves the best as a file to run.

    With --inner the settings of the inner optimizer are searched too, as --grid inner.lr=1e-3,3e-3.
    """
    from docom.cli import commands, tuning

    given = {"steps": steps, "seed": seed, "device": device, "threads": threads,
             **commands.walk(inner, local_steps, overlap), "conditions": conditions}  # fmt: skip
    tuning.tune(what, algorithm, compressor, given, grid or [], trials, data, out, _command())


@app.command()
def bench(
    json: Annotated[Path | None, option("--json", "File for the results.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.", rich_help_panel=PLACE)] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="A few calls of each, to see that it works.")] = False,
    only: Annotated[str | None, option("--only", "Only cases whose name starts like this, such as mlp.")] = None,
    plot: Annotated[Path | None, option("--plot", "File for a figure, PNG or SVG.")] = None,
    yardsticks: Annotated[Path | None, option("--yardsticks", "Folder of yardsticks.py.")] = None,
) -> None:
    """Measure the simulator and plain PyTorch steps alternately: about ten minutes. Needs a clone of the repository."""
    from docom.cli import benchmark

    benchmark.bench(json, device, quick, only, plot, yardsticks)


@app.command()
def demo(
    steps: Annotated[int, typer.Option("--steps", help="Number of steps.", min=1)] = 1000,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """DoCoM and the baselines on the synthetic problem, about a minute: a table, a figure, a page."""
    from docom.cli import comparison

    every, folder = max(1, steps // 20), out or Path("demo")
    comparison.compare("synthetic", 1, steps, every, None, False, None, None, None, folder, _command(), overwrite)


@app.command()
def init(file: Annotated[Path, typer.Argument(help="The file to write, such as mine.yaml.")]) -> None:
    """Write a configuration with every setting explained, to be changed and run. Replaces no file."""
    from docom.cli import initial

    initial.init(file)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain some.")],
    link: Annotated[str | None, option("--link", "Price messages on links such as 10mbit,20ms.")] = None,
    out: Out = None,
    plugin: Plugins = None,
) -> None:
    """Make one HTML page, and PNG and SVG figures, from the records of runs."""
    from docom.cli import commands

    commands.report(folders, link, out)


@app.command()
def plan(
    federation: Annotated[Path | None, typer.Argument(help="A members' file; else --link and --model-size.")] = None,
    link: Annotated[
        str | None, option("--link", "Line of every agent, such as 10mbit,50ms; with a file, of links not measured.")
    ] = None,
    model_size: Annotated[
        str | None, option("--model-size", "Parameters: 10M, 79510, or shapes such as 784x100,100.")
    ] = None,
    step_seconds: Annotated[
        float | None, option("--step-seconds", "Seconds of a gradient, of one batch, on your machines.")
    ] = None,
    agents: Agents = None,
    topology: Annotated[
        str | None, option("--topology", "Graphs to price, separated by commas; ring if left out.")
    ] = None,
    compare: Annotated[Path | None, option("--compare", "Folder of a finished run, to compare with its plan.")] = None,
    links: Annotated[
        list[Path] | None, option("--links", "Folder of a site of another machine, with its links.json (repeatable).")
    ] = None,
    local_steps: Annotated[str, typer.Option("--local-steps", help="Numbers of local steps to price.")] = "8,32,128",
    only: Annotated[str | None, option("--only", "Methods to price, separated by commas.")] = None,
    busy: Annotated[
        float, typer.Option("--busy", help="Share of the time that agents should compute.", min=0.01, max=1)
    ] = 0.9,
    everything: Annotated[bool, typer.Option("--all", help="All settings, and why some cannot be priced.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    data: Data = None,
) -> None:
    """Price every method, compressor, number of local steps and graph on your lines, before anything runs; say what to take."""
    from docom.cli import plan_command

    question = plan_command.Question(
        federation, link, model_size, step_seconds, agents, topology, compare, links or [], local_steps, only, busy
    )
    plan_command.plan(question, everything, json, data)


@app.command(name="list")
def list_names(plugin: Plugins = None) -> None:
    """Algorithms, compressors, topologies, presets and problems, a line each."""
    from docom.cli import commands

    commands.list_names()


@app.command()
def theory(
    preset: Annotated[str | None, typer.Argument(help="Take network, compressor and steps from a preset.")] = None,
    topology: Topology = None,
    agents: Agents = None,
    compressor: Compressor = None,
    delta: Annotated[float | None, option("--delta", "Contraction of the compressor, instead of --compressor.")] = None,
    dimension: Annotated[int | None, option("--dimension", "Number of parameters d.", 1)] = None,
    smoothness: Annotated[float | None, option("--L", "Smoothness of the f_i; 1 if left out.", panel=CONSTANTS)] = None,
    sigma: Annotated[float | None, option("--sigma", "Noise of a gradient; 1 if left out.", panel=CONSTANTS)] = None,
    mu: Annotated[
        float | None, option("--mu", "PL constant, for the bounds under that condition.", panel=CONSTANTS)
    ] = None,
    initial_gap: Annotated[float | None, option("--Delta0", "f(x0) - f*; 1 if left out.", panel=CONSTANTS)] = None,
    initial_gradient: Annotated[
        float | None,
        option("--Gbar0", "Mean squared norm of the first local gradients; 1 if left out.", panel=CONSTANTS),
    ] = None,
    lr: Annotated[float | None, option("--lr", "Step size to judge; the schedule's if left out.", panel=JUDGED)] = None,
    gamma: Annotated[
        float | None, option("--gamma", "Consensus step to judge; the largest admissible one.", panel=JUDGED)
    ] = None,
    beta: Annotated[
        float | None, option("--beta", "Weight of the fresh gradient to judge; the schedule's.", panel=JUDGED)
    ] = None,
    schedule: Annotated[
        str, typer.Option("--schedule", help="A, B, C, PL, PL-balanced or feasible.", rich_help_panel=JUDGED)
    ] = "A",
    horizon: Annotated[
        float, typer.Option("--T", help="Number of steps.", min=1, max=1e18, rich_help_panel=JUDGED)
    ] = 1e6,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Accuracy in tables of samples and bits.")] = 0.01,
    printed: Annotated[bool, typer.Option("--printed", help="The paper's printed formulas, slips included.")] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure L, sigma, f(x0), Gbar0 and delta on the preset's problem.",
            rich_help_panel=CONSTANTS,
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every constant, condition, term and table; one screen without it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
    plot: Annotated[Path | None, option("--plot", "Draw the bound's terms against T, and bits to epsilon.")] = None,
    data: Data = None,
    plugin: Plugins = None,
) -> None:
    """The paper's constants, step conditions, bounds, rates and tables for a network, a compressor and a problem."""
    from docom.cli import theory_command

    question = theory_command.Question(
        preset, topology, agents, compressor, delta, dimension, smoothness, sigma, mu, initial_gap, initial_gradient,
        lr, gamma, beta, schedule, int(horizon), epsilon, printed, measure,
    )  # fmt: skip
    theory_command.theory(question, everything, json, plot, data)


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="potential, linear, slopes, heterogeneity, network, speed-up, or all.")],
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.", rich_help_panel=PLACE)] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: seconds instead of minutes.")] = False,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Put a claim of the theory to the test: a table, a figure and the numbers behind it, with confidence intervals."""
    from docom.cli import studies

    studies.study(name, device, quick, threads, out or Path("studies"))


def _command() -> str:
    """The command as typed, for the record."""
    import shlex

    return "docom " + shlex.join(sys.argv[1:])
