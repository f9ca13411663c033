"""What `docom bench` does."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from docom.bench import Case, Results, measure
from docom.bench.tables import PROBLEMS, show, time

console = Console()


def bench(
    json: Path | None, device: str, quick: bool, only: str | None, plot: Path | None, folder: Path | None
) -> None:
    """See `docom.cli.app.bench`."""
    progress = Console(stderr=True)

    def tell(case: Case) -> None:
        middles = ", ".join(f"{subject} {time(case.seconds(subject).middle)}" for subject in case.times)
        facts = ", ".join(f"{name} {value:.3g}" for name, value in case.facts.items())
        rest = "; ".join(part for part in (middles, facts) if part)
        progress.print(f"{case.name}: {rest}", highlight=False, soft_wrap=True)

    results = measure(device, quick, only, folder, tell)
    if not results.cases:
        raise ValueError(f"no case starts with {only!r}; there are linear, mlp, lenet, module, push, codec, scaling, large, "
                         "evaluation and startup")  # fmt: skip
    if json is not None:
        results.write(json)
    _show(results)
    if plot is not None:
        from docom.bench.plot import draw

        draw(results, plot)
    for path in (json, plot):
        if path is not None:
            console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)


def _show(results: Results) -> None:
    table = Table(title="one step of DoCoM, medians", title_justify="left")
    for column in ("problem", "compressor", "docom", "plain vectorised", "times faster", "over none"):
        table.add_column(column)
    for name, title in PROBLEMS.items():
        case = results.cases.get(f"{name} docom")
        for compressor in ("topk:0.05", "quantize:4", "none") if case is not None else ():
            assert case is not None
            plain = f"plain {compressor}"
            table.add_row(
                title, compressor, time(case.seconds(compressor).middle), time(case.seconds(plain).middle),
                f"{case.ratio(plain, compressor).middle:.2f}", f"{case.ratio(compressor, 'none').middle:.2f}",
            )  # fmt: skip
    if table.row_count:
        console.print(table)
    if results.verdicts:
        verdicts = Table(title="targets", title_justify="left")
        for column in ("target", "goal", "measured", "met"):
            verdicts.add_column(column)
        for verdict in results.verdicts:
            verdicts.add_row(verdict.what, verdict.goal, show(verdict), "yes" if verdict.met else "[bold red]no")
        console.print(verdicts)
