"""Putting a report in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from docom.report.configurations import configurations
from docom.report.figures import save_all
from docom.report.links import Link, priced
from docom.report.page import render
from docom.report.runs import RunData

PAGE = "report.html"


def write(runs: Sequence[RunData], out_dir: Path | str, link: Link | None = None, title: str | None = None) -> Path:
    """Write the page and the figures of some runs.

    Args:
        runs: from `load`.
        out_dir: where ``report.html`` and ``panels-by-AXIS.png`` and ``.svg`` go; made if absent. Files are
            replaced whole, so that a reader never meets half a one.
        link: adds the axis "seconds on this link".
        title: of the page; by default the presets' names.

    Returns:
        The path of the page.
    """
    if link is not None:
        runs = [priced(run, link) for run in runs]
    gathered = configurations(runs)
    if not gathered:
        raise ValueError(
            f"none of the {len(runs)} runs holds a record, so that there is nothing to report; run them first"
        )
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    page = render(runs, gathered, link, title or _title(runs))
    with tempfile.TemporaryDirectory(dir=out, prefix=".report-", suffix=".tmp") as temporary:
        made = save_all(gathered, Path(temporary), str(link) if link else None)
        made.append(Path(temporary) / PAGE)  # last: who sees the new page finds the new figures
        made[-1].write_text(page, encoding="utf-8")
        for path in made:
            os.replace(path, out / path.name)
    return out / PAGE


def _title(runs: Sequence[RunData]) -> str:
    presets = sorted({preset for run in runs if (preset := run.text("preset"))})
    return f"docom: {', '.join(presets)}" if presets else "docom: report"
