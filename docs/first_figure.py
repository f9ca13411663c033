"""Draws the README's first figure from run folders: ``python docs/first_figure.py out/mnist``.

The runs are made by::

    docom data get mnist
    docom compare mnist --steps 3000 --eval-every 50 --only docom,beer,choco-sgd,gt-hsgd,dsgd
"""

from __future__ import annotations

import sys
from pathlib import Path

from docom import report
from docom.curves import AXES, PANELS, axis_scales, figure

FILE = Path(__file__).parent / "figures" / "mnist-first.png"


def main(folder: str) -> None:
    """Accuracy, loss and disagreement against what an agent sends."""
    curves = report.configurations(report.load([folder]))
    panels = [PANELS[key] for key in ("test_accuracy_worst", "loss_worst", "consensus_gap")]
    figure(curves, panels, AXES["bits"], axis_scales(curves)["bits"]).savefig(FILE, dpi=130)
    print(FILE)


if __name__ == "__main__":
    main(sys.argv[1])
