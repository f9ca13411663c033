"""What a run leaves behind: its records, its models, and the ways to look at them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from docom.metrics import MEANING

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Record = dict[str, float]


@dataclass
class Run:
    """A finished run.

    x: final models ``[n, d]`` (the drawn iterate with ``output="uniform"``).
    records: one dict an evaluation; `docom.metrics.MEANING` explains the keys.
    description: settings as used, among them the measured gamma where it was "auto".
    """

    x: Tensor
    records: list[Record]
    description: dict[str, Any] = field(default_factory=dict)
    as_model: Callable[[Tensor], Any] = lambda row: row

    def to_frame(self) -> pandas.DataFrame:
        """The records as a data frame, one row an evaluation."""
        import pandas

        return pandas.DataFrame(self.records)

    def mean_model(self) -> Any:
        """The average over agents: a row, or a copy of the module for a `ModuleProblem`."""
        return self.as_model(self.x.mean(dim=0))

    def plot(self, x: str = "step", y: tuple[str, ...] | None = None) -> Figure:
        """The measures against steps (or ``"bits"``, ``"samples"``, ...), one panel each, as a matplotlib figure."""
        return plot({self.description.get("label", "run"): self.records}, x, y)


PANELS = ("loss_worst", "consensus_gap", "grad_norm_worst", "test_accuracy_worst")


def plot(runs: dict[str, list[Record]], x: str = "step", y: tuple[str, ...] | None = None) -> Figure:
    """Curves of several runs, one panel a measure."""
    from matplotlib.figure import Figure

    panels = [name for name in y or PANELS if any(name in records[0] for records in runs.values())]
    if not panels:
        raise ValueError(f"none of {', '.join(y or PANELS)} is in the records")
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, name in zip(axes, panels, strict=True):
        for label, records in runs.items():
            points = [(record[x], record[name]) for record in records if name in record]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.6)
        if not name.endswith("accuracy_worst") and all(
            r[name] > 0 for rs in runs.values() for r in rs[1:] if name in r
        ):
            axis.set_yscale("log")
        axis.set_xlabel(x.replace("_", " "))
        axis.set_title(name.replace("_", " "), fontsize=11)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(runs) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 5), frameon=False)
    return figure


CONDITION = re.compile(r"^\s*(\w+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*$")


def stop_condition(text: str | None) -> Callable[[Record], bool]:
    """``"loss_worst<=0.05"`` as a test of a record; None never stops.

    >>> stop_condition("loss_worst<=0.05")({"loss_worst": 0.04})
    True
    """
    if text is None:
        return lambda record: False
    match = CONDITION.match(text)
    if match is None or match[1] not in MEANING:
        raise ValueError(
            f'until must read like "loss_worst<=0.05", with one of {", ".join(MEANING)} and <=, <, >= or >; got {text!r}'
        )
    key, sign = match[1], match[2]
    try:
        limit = float(match[3])
    except ValueError:
        raise ValueError(f"until compares with a number, got {match[3]!r} in {text!r}") from None
    compare: dict[str, Callable[[float], bool]] = {
        "<=": lambda value: value <= limit,
        "<": lambda value: value < limit,
        ">=": lambda value: value >= limit,
        ">": lambda value: value > limit,
    }

    def reached(record: Record) -> bool:
        if key not in record:
            raise ValueError(f"until asks for {key!r}, which this problem does not measure; it has {', '.join(record)}")
        return compare[sign](record[key])

    return reached
