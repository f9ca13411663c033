"""A picture of the page: by a browser of this machine without a window, or drawn by matplotlib where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docom.runfolder import write_whole
from docom.watch.lanes import BINS, KINDS

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
COLOURS = {"computing": "#2f6fc4", "waiting": "#e2a32b", "away": "#d5d9e0", "here": "#a9c3e6", "left out": "#b8457e"}
PATIENCE = 60.0  # seconds for the browser
WIDTH = 1240


def photograph(page: Path, to: Path, height: int) -> bool:
    """A picture of a page that is a file, by a browser; whether there is one that could."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    with tempfile.TemporaryDirectory(prefix="docom-picture-") as folder:
        made = Path(folder) / "picture.png"
        options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height}",
                   f"--screenshot={made}"]  # fmt: skip
        if os.geteuid() == 0:  # a browser of the system's administrator refuses to start with its sandbox
            options.append("--no-sandbox")
        try:
            subprocess.run(
                [browser, *options, page.resolve().as_uri()], capture_output=True, timeout=PATIENCE, check=True
            )
        except (subprocess.SubprocessError, OSError):
            return False
        if not made.is_file():
            return False
        write_whole(to, made.read_bytes())
    return True


def draw(state: Mapping[str, Any], to: Path) -> None:
    """The curves and lanes of a run as a figure."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["loss", "disagreement"], ["sites", "sites"]])
    for name in ("loss", "disagreement"):
        for curve in state["curves"][name]:
            axes[name].plot(
                curve["time"], [float("nan") if y is None else y for y in curve["y"]], label=", ".join(curve["sites"])
            )
        axes[name].set(title=name, xlabel="seconds")
        axes[name].grid(alpha=0.3)
    width = max(state["end"] - state["begin"], 1e-6) / BINS
    sites = list(reversed(state["sites"]))
    for row, site in enumerate(sites):
        low = [row - 0.4] * BINS
        for kind in KINDS:
            shares = site["bins"].get(kind)
            if shares is not None:
                heights = [0.8 * share for share in shares]
                label = kind if kind not in axes["sites"].get_legend_handles_labels()[1] else None
                left = [width * place for place in range(BINS)]
                axes["sites"].bar(left, heights, width, low, align="edge", color=COLOURS[kind], label=label)
                low = [bottom + height for bottom, height in zip(low, heights, strict=True)]
    axes["sites"].set(
        yticks=range(len(sites)), yticklabels=[site["name"] for site in sites], xlabel="seconds", title="sites"
    )
    if axes["sites"].get_legend_handles_labels()[1]:
        axes["sites"].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, format="png")
    write_whole(to, buffer.getvalue())
