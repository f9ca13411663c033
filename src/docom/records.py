"""What a run leaves behind: its records, its models, and the ways to look at them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
        """The records as a data frame, one row per evaluation."""
        import pandas

        return pandas.DataFrame(self.records)

    def mean_model(self) -> Any:
        """The average over agents: a row, or a copy of the module for a `ModuleProblem`."""
        return self.as_model(self.x.mean(dim=0))

    def plot(self, against: str = "steps", measures: Sequence[str] | None = None) -> Figure:
        """The measures against steps (or ``"bits"``, ``"bytes"``, ``"samples"``, ``"seconds"``): see `plot`."""
        return plot([self], against, measures)


# Where no measures are asked for: those of these that the runs have.
USUAL = ("loss_worst", "consensus_gap", "grad_norm_worst", "test_accuracy_worst")


def plot(
    runs: Sequence[Run] | Mapping[str, Run], against: str = "steps", measures: Sequence[str] | None = None
) -> Figure:
    """The curves of several runs, one panel for each measure, as a matplotlib figure.

    Args:
        runs: a list, labelled by their methods, or a dict from label to run.
        against: the horizontal axis: "steps", "bits" or "bytes" (sent per agent), "samples" or "seconds".
        measures: keys of the records; by default the worst loss, the consensus gap, the worst gradient norm and the test
            accuracy, as far as they were measured.
    """
    from docom.curves import Series, axis_named, figure, panel_of, with_totals
    from docom.curves.scales import axis_scale

    if isinstance(runs, Run):
        runs = [runs]
    named = dict(runs) if isinstance(runs, Mapping) else dict(zip(_labels(runs), runs, strict=True))
    if not named:
        raise ValueError("there is no run to plot; give a list of runs, or a dict from label to run")
    curves = [
        Series(label, [with_totals(record, len(run.x)) for record in run.records], COLOURS[place % len(COLOURS)])
        for place, (label, run) in enumerate(named.items())
    ]
    wanted = [key for key in measures or USUAL if any(curve.last(key) for curve in curves)]
    if not wanted:
        raise ValueError(f"none of {', '.join(measures or USUAL)} is in the records")
    axis = axis_named(against)
    scale = axis_scale(axis, curves)
    if scale is None:
        raise ValueError(f"the records hold no {axis.button}")
    return figure(curves, [panel_of(key) for key in wanted], axis, scale)


COLOURS = ("#d62f4b", "#3579c8", "#2f9e5f", "#e08a1e", "#8a5cc2", "#17a0ac", "#9c6b43", "#d65fa8", "#7d858f", "#92a01f")


def _labels(runs: Sequence[Run]) -> list[str]:
    """The runs' own labels; those that repeat are numbered."""
    labels = [str(run.description.get("label", "run")) for run in runs]
    return [f"{label} {labels[: at + 1].count(label)}" if labels.count(label) > 1 else label
            for at, label in enumerate(labels)]  # fmt: skip


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
