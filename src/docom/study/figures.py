"""The studies' figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Findings = dict[str, Any]


def draw(findings: Findings) -> Figure:
    """The figure of a study from its findings."""
    from matplotlib.figure import Figure

    parts = _DRAWN[findings["study"]]
    figure = Figure(figsize=(5.2 * len(parts), 4.0), layout="constrained")
    places = figure.subplots(1, len(parts), squeeze=False)[0]
    for place, part in zip(places, parts, strict=True):
        part(place, findings)
        place.grid(alpha=0.25)
        place.spines[["top", "right"]].set_visible(False)
        place.title.set_fontsize(10.5)
    return figure


def _curve(place: Axes, at: Sequence[float], estimates: Sequence[dict[str, float]], label: str) -> None:
    values = [e["value"] for e in estimates]
    (line,) = place.plot(at, values, marker="o", markersize=3.5, linewidth=1.4, label=label)
    place.fill_between(
        at, [e["low"] for e in estimates], [e["high"] for e in estimates], alpha=0.2, color=line.get_color()
    )


def _recursion(place: Axes, findings: Findings) -> None:
    for state, label in (("run", "three steps into a run"), ("random", "random state")):
        ratios = sorted(row["ratio"] for row in findings["recursion"] if row["state"] == state)
        place.plot(ratios, [(k + 1) / len(ratios) for k in range(len(ratios))], label=label)
    place.axvline(1, color="black", linestyle=":", linewidth=1)
    place.set_title("E V after a step / what the recursion allows")
    place.set_xlabel("ratio")
    place.set_ylabel("share of settings below")
    place.legend(frameon=False)


def _beyond(place: Axes, findings: Findings) -> None:
    for which in ("gamma and eta", "eta alone"):
        rows = [row for row in findings["beyond"] if row["which"] == which]
        place.plot([row["factor"] for row in rows], [row["broken"] for row in rows], marker="o", label=which)
    place.set_xscale("log")
    place.set_title("share of settings whose recursion breaks")
    place.set_xlabel("steps, in multiples of the admissible ones")
    place.legend(frameon=False)


def _bound(place: Axes, findings: Findings) -> None:
    for kind in ("admissible", "practical"):
        rows = [row for row in findings["bound"] if row["steps"] == kind]
        place.scatter([row["bound"] for row in rows], [row["high"] for row in rows], s=16, label=f"{kind} steps")
    low = min(row["high"] for row in findings["bound"])
    high = max(row["bound"] for row in findings["bound"])
    place.plot([low, high], [low, high], color="black", linestyle=":", linewidth=1)
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_title("average over a run against the theorem's bound")
    place.set_xlabel("bound")
    place.set_ylabel("measured (upper end of 95% interval)")
    place.legend(frameon=False)


def _linear(place: Axes, findings: Findings) -> None:
    for row in findings["linear"]:
        if row["steps"] == "practical":
            curve = row["curve"]
            at = [k * row["curve_every"] for k in range(len(curve))]
            (line,) = place.plot(at, curve, label=f"{row['compressor']}: {row['rate']:.4f} per step")
            predicted = [curve[0] * row["predicted"] ** t for t in at]
            place.plot(at, predicted, color=line.get_color(), linestyle=":", linewidth=1)
    place.set_yscale("log")
    place.set_ylim(bottom=1e-26)
    place.set_title("f(mean) - f*, full gradients (dotted: 1 - min(eta mu, beta_bar/2))")
    place.set_xlabel("steps")
    place.legend(frameon=False)


def _slopes(part: str) -> Callable[[Axes, Findings], None]:
    def drawn(place: Axes, findings: Findings) -> None:
        for row in findings[part]:
            slope = row["slope"]
            label = f"{row['method']}: {slope['value']:.2f} ({slope['low']:.2f} to {slope['high']:.2f})"
            _curve(place, row["T"], row["averages"], label)
        _log_log(place, f"{part}: average of |grad f(mean)|^2 over a run", "T")

    return drawn


def _heterogeneity(place: Axes, findings: Findings) -> None:
    for row in findings["heterogeneity"]:
        _curve(place, row["levels"], row["errors"], row["method"])
    _log_log(place, "mean over agents of |grad f(theta_i)|^2, end of the run", "heterogeneity |grad f_i - grad f|")


def _pairs(place: Axes, findings: Findings) -> None:
    for row in findings["network"]:
        if "errors" in row:
            _curve(place, row["T"], row["errors"], row["what"])
    _log_log(place, "average of |grad f(theta_i)|^2 over a run", "T")


def _ratios(place: Axes, findings: Findings) -> None:
    for row in findings["network"]:
        if "ratios" in row:
            _curve(place, row["T"], row["ratios"], row["what"])
    place.axhline(1, color="black", linestyle=":", linewidth=1)
    _log_log(place, "what a worse network or compressor costs (ratio)", "T")


def _speed_up(place: Axes, findings: Findings) -> None:
    for row in findings["speed_up"]:
        slope = row["slope"]
        _curve(
            place, row["n"], row["errors"],
            f"{row['what']}, {row['topology']}: {slope['value']:.2f} ({slope['low']:.2f} to {slope['high']:.2f})",
        )  # fmt: skip
    _log_log(place, "variance term against n, fixed steps", "n")


def _log_log(place: Axes, title: str, x: str) -> None:
    place.set_xscale("log")
    place.set_yscale("log")
    place.set_title(title)
    place.set_xlabel(x)
    place.legend(frameon=False, fontsize=8)


_DRAWN: dict[str, tuple[Callable[[Any, Findings], None], ...]] = {
    "potential": (_recursion, _beyond, _bound),
    "linear": (_linear,),
    "slopes": (_slopes("quadratic"), _slopes("sigmoid")),
    "heterogeneity": (_heterogeneity,),
    "network": (_pairs, _ratios),
    "speed-up": (_speed_up,),
}
