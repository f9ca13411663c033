"""The page: one HTML file with its state, its style and its script inside; nothing is fetched but the state from its own server.

Everything that comes from files is text to the page: the state is JSON in which no ``<`` is left, the script writes it as text
only, and a content security policy lets nothing run but the one script written here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

STATE = "{{state}}"


def render(state: Mapping[str, Any], live: bool = False) -> str:
    """The page. live: whether it asks its server for changes; else it stands for itself, as a file."""
    text = json.dumps(dict(state) | {"follow": live}, allow_nan=False, separators=(",", ":"))
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return _whole(live).replace(STATE, text)


def policy(live: bool) -> str:
    """What the page may do: run its one script, use its one style, and hear from its own server if it is live."""
    connect = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {_hash(_resource('page.js'))}; style-src {_hash(_resource('page.css'))}; {connect}"
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _whole(live: bool) -> str:
    found = _resource("page.html")
    for name, content in (("policy", policy(live)), ("style", _resource("page.css")), ("script", _resource("page.js"))):
        found = found.replace("{{" + name + "}}", content)
    return found


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _resource(name: str) -> str:
    return (files("docom.watch") / name).read_text(encoding="utf-8").replace("\r\n", "\n")
