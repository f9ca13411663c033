"""The page: one HTML file with its data, its script and plotly inside.

Everything that comes from run folders is text to the page: the template escapes it, the data is JSON in which
no ``<`` is left, and a content security policy lets run nothing but the two scripts written here and forbids
every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import docom
from docom.curves import AXES, FEW_POINTS, INSIDE, PANELS, Scale, axis_scales, log_by_default
from docom.curves.drawing import panels_with_data
from docom.curves.measures import LINK_SECONDS, UNITS, all_links_only, meaning
from docom.report.configurations import Configuration
from docom.report.links import Link
from docom.report.looks import SVG_DASHES
from docom.report.network_drawings import MOST_DRAWINGS, SIZE, drawings
from docom.report.over_time import OverTime, over_time
from docom.report.reach import LOSS, default_level
from docom.report.runs import RunData
from docom.report.tables import Column, cost_columns, facts, final_table, headline, notes, reach_table, settings

DIGITS = 7  # of the numbers in the page's data


def render(runs: Sequence[RunData], configurations: Sequence[Configuration], link: Link | None, title: str) -> str:
    """The whole page as text."""
    from jinja2 import Environment, StrictUndefined
    from plotly.offline import get_plotlyjs

    scales = axis_scales(configurations, str(link) if link else None)
    level = default_level(configurations)
    plotly, script = _as_script(get_plotlyjs()), _as_script(_resource("page.js") + _resource("over_time.js"))
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_resource("page.html.j2"))
    panels = panels_with_data(configurations)
    columns = cost_columns(list(scales))
    histories = over_time(configurations)
    return template.render(
        title=title,
        version=docom.__version__,
        policy=_policy(plotly, script),
        style=_resource("page.css"),
        plotly=plotly,
        script=script,
        data=_as_json(_data(configurations, scales, level, histories)),
        facts=facts(configurations),
        notes=notes(runs, configurations, priced=LINK_SECONDS in scales),
        axes=[AXES[key] for key in scales if key not in all_links_only(scales)],
        counted_twice=bool(all_links_only(scales)),
        panels=panels,
        meaning={key: _meaning(key, link) for key in (*scales, *(panel.key for panel in panels))},
        names={
            **{key: AXES[key].title for key in scales},
            **{key: panel.title for key, panel in (PANELS | INSIDE).items()},
        },
        configurations=configurations,
        dashes=SVG_DASHES,
        level=level,
        reach=reach_table(configurations, level, list(scales)) if level is not None else [],
        reach_columns=columns,
        final=final_table(configurations, list(scales)),
        final_columns=[*(Column(panel.title.lower()) for panel in headline(panels)), *columns],
        drawings=drawings(configurations),
        most_drawings=MOST_DRAWINGS,
        drawing_size=f"{SIZE:g}",
        histories=histories,
        settings=settings(configurations),
        provenance=_provenance(runs),
        runs=len(runs),
    )


def _data(
    configurations: Sequence[Configuration], scales: dict[str, Scale], level: float | None, histories: list[OverTime]
) -> dict[str, Any]:
    """What the page's script draws from."""
    panels = panels_with_data(configurations)
    return {
        "axes": [
            {"key": key, "kind": AXES[key].kind, "allLinks": AXES[key].all_links, **asdict(scale)}
            for key, scale in scales.items()
        ],
        "fewPoints": FEW_POINTS,
        "panels": [{**asdict(panel), "log": log_by_default(panel, configurations)} for panel in panels],
        "units": UNITS,
        "level": level,
        "overTime": [history.data for history in histories],
        "configurations": [
            {
                "label": configuration.label,
                "colour": configuration.colour,
                "dash": configuration.dash,
                "x": {key: _short(configuration.spread(key).mean) for key in scales},
                "y": {
                    panel.key: {name: _short(values) for name, values in asdict(configuration.curve(panel.key)).items()}
                    for panel in panels
                },
                "runs": [
                    {"loss": _short(run.column(LOSS)), "x": {key: _short(run.column(key)) for key in scales}}
                    for run in configuration.runs
                ],
            }
            for configuration in configurations
        ],
    }


def _meaning(key: str, link: Link | None) -> str:
    """What an axis or a measure is; the report alone knows the link."""
    if key == LINK_SECONDS:
        return (
            f"time on links of {link}: every round of messages, and the compute seconds of the run "
            "(in a simulation these are of all agents together)"
        )
    return meaning(key)


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else float(f"{value:.{DIGITS}g}") for value in values]


def _as_json(data: object) -> str:
    """JSON that cannot end the element that contains it, for any labels."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _as_script(text: str) -> str:
    """Source as a browser reads it back from an element: the hash is of exactly these characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """Only these scripts run, and nothing is fetched."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _resource(name: str) -> str:
    return (files("docom.report") / name).read_text(encoding="utf-8")


def _provenance(runs: Sequence[RunData]) -> list[tuple[str, str]]:
    """Every fact of the runs' provenance; where runs differ, all the values."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in run.provenance.items():
            if value is None:  # such as the commit, of an installed package
                continue
            text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            if text not in found.setdefault(str(key), []):
                found[str(key)].append(text)
    return [(key, "; ".join(values)) for key, values in found.items()]
