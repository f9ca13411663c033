"""Draws the figures of docs/design.md: ``python docs/drawings.py``.

The rooms come from the layers in pyproject.toml, so the drawing is what the import linter checks. Text stands on filled boxes
and lines are grey, so that the drawings can be read on light and on dark pages.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
INK, LINE, PALE = "#1d2433", "#8a91a0", "#f3f5fa"
SHADES = ("#d9def5", "#d5e8f7", "#d4efe6", "#e6f0d0", "#f8eccb", "#f8dfcb", "#f3d6dc")


def box(x: float, y: float, width: float, height: float, text: str, fill: str, size: int = 14) -> str:
    """A rounded box with text in its middle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        f'<text x="{x + width / 2:g}" y="{y + height / 2 + size * 0.35:g}" font-size="{size}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )


def arrow(x1: float, x2: float, y: float, text: str) -> str:
    """A horizontal arrow with its text on a pale label."""
    width, middle = 6.6 * len(text) + 12, (x1 + x2) / 2
    return (
        f'<line x1="{x1:g}" y1="{y:g}" x2="{x2 - 7 * (1 if x2 > x1 else -1):g}" y2="{y:g}" stroke="{LINE}" stroke-width="2" '
        f'marker-end="url(#tip)"/>'
        f'<rect x="{middle - width / 2:g}" y="{y - 21:g}" width="{width:g}" height="17" rx="4" fill="{PALE}"/>'
        f'<text x="{middle:g}" y="{y - 8:g}" font-size="12" text-anchor="middle">{escape(text)}</text>'
    )


def document(width: float, height: float, title: str, parts: list[str]) -> str:
    """A drawing as a file."""
    tip = f'<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="5" markerHeight="5" orient="auto">\
<path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" fill="{INK}">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title><defs>{tip}</defs>", *parts, "</svg>\n"])


def rooms() -> str:
    """The rows of modules; one may import only from rows below its own."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    width, height, gap, parts = 900.0, 34.0, 10.0, []
    for number, layer in enumerate(layers):
        names = [name.strip() for name in layer.split("|")]
        y = 10 + number * (height + gap)
        share = (width - gap * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            parts.append(box(10 + place * (share + gap), y, share, height, name, SHADES[number * 7 // len(layers)]))
    return document(
        width + 20, 10 + len(layers) * (height + gap), "The rooms: each imports from rows below only", parts
    )


LANES = ("loop", "algorithm", "channel", "compressor", "transport", "oracle")
STEPS = (
    ("loop", "algorithm", "advance(state)"),
    ("algorithm", "channel", "push(x)"),
    ("channel", "compressor", "compress x - hat"),
    ("channel", "transport", "exchange(message)"),
    ("transport", "compressor", "encode, then decode"),
    ("transport", "channel", "messages, in agent order"),
    ("channel", "algorithm", "gap; hat is updated"),
    ("algorithm", "loop", "state.points"),
    ("loop", "oracle", "gradients at the points, one batch"),
    ("oracle", "loop", "one row per local agent"),
    ("loop", "algorithm", "absorb(state, grads)"),
    ("algorithm", "channel", "push(tracker), as above"),
    ("loop", "loop", "now and then: measure, record, checkpoint"),
)


def step() -> str:
    """What calls what during one step, from top to bottom."""
    pitch, top, drop = 170.0, 60.0, 44.0
    at = {lane: 85 + number * pitch for number, lane in enumerate(LANES)}
    bottom = top + drop * len(STEPS) + 10
    parts = [
        f'<line x1="{x:g}" y1="44" x2="{x:g}" y2="{bottom:g}" stroke="{LINE}" stroke-dasharray="4 5"/>'
        for x in at.values()
    ]
    parts += [box(x - 65, 10, 130, 34, lane, SHADES[number]) for number, (lane, x) in enumerate(at.items())]
    for number, (start, end, text) in enumerate(STEPS):
        y = top + drop * (number + 0.75)
        if start == end:
            parts.append(box(at[start] - 75, y - 22, 300, 26, text, PALE, 12))
        else:
            parts.append(arrow(at[start], at[end], y, text))
    return document(2 * 85 + pitch * (len(LANES) - 1), bottom + 10, "One step's way through the rooms", parts)


DRAWINGS = {"rooms.svg": rooms, "step.svg": step}


def main() -> None:
    """Write the drawings."""
    for name, draw in DRAWINGS.items():
        (ROOT / "docs" / "figures" / name).write_text(draw())


if __name__ == "__main__":
    main()
