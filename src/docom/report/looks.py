"""How curves are told apart: a colour an algorithm, a dash a kind of compressor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb, rgb_to_hls

from docom.algorithms import ALGORITHMS, ASYNCHRONOUS
from docom.report.runs import RunData

# For methods that name no colour. Colours are legible on white and on near-black.
OTHER_COLOURS = ("#c2622d", "#4f8fa8", "#7b9e3e", "#a05fb5", "#b98a5a", "#5d7fb8")

# The kind of compressor -> plotly's name of the dash.
DASHES: dict[str, str] = {
    "topk": "solid",
    "randk": "longdash",
    "quantize": "dash",
    "sign": "dashdot",
    "lowrank": "longdashdot",
    "edge-lowrank": "longdashdot",
    "none": "dot",
}


# Plotly's name of a dash -> the same in SVG, for legends.
SVG_DASHES: dict[str, str] = {
    "solid": "none",
    "dash": "6 3",
    "dot": "1.5 2.5",
    "dashdot": "6 2.5 1.5 2.5",
    "longdash": "10 3",
    "longdashdot": "10 2.5 1.5 2.5",
}


def rank(run: RunData) -> int:
    """The place of its algorithm in legends and tables: that in the registry."""
    algorithm = run.text("algorithm")
    known = [*ALGORITHMS, *ASYNCHRONOUS]
    return known.index(algorithm) if algorithm in known else len(known)


def looks(runs: Sequence[RunData]) -> Iterator[tuple[str, str]]:
    """Colour by algorithm, dash by compressor; where both are taken, the next shade of the colour."""
    own = {name: method.facts.colour for name, method in (ALGORITHMS | ASYNCHRONOUS).items() if method.facts.colour}
    unknown = sorted({run.text("algorithm") or run.label for run in runs} - set(own))
    others = {name: OTHER_COLOURS[place % len(OTHER_COLOURS)] for place, name in enumerate(unknown)}
    taken: dict[tuple[str, str], int] = {}
    for run in runs:
        name = run.text("algorithm") or run.label
        look = (own.get(name) or others[name], _dash(run.text("compressor")))
        taken[look] = taken.get(look, -1) + 1
        yield _shade(look[0], taken[look]), look[1]


def _dash(compressor: str | None) -> str:
    kind = (compressor or "none").partition(":")[0]
    return DASHES.get(kind, "solid")


def _shade(colour: str, number: int) -> str:
    """The colour itself, then its neighbours on either side, alternately a little lighter and darker."""
    if number == 0:
        return colour
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, lightness, saturation = rgb_to_hls(red, green, blue)
    distance = (number + 1) // 2 * (1 if number % 2 else -1)
    lightness = min(0.7, max(0.3, lightness + 0.12 * distance))
    shade = hls_to_rgb((hue + 0.09 * distance) % 1, lightness, saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in shade)
