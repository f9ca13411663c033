"""What must be equal in all processes of a run: settings, code, plugins, data and graph, as text and digests."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from docom import __version__, plugins
from docom.distribute.digests import digest
from docom.problems import Problem
from docom.weights import Network


def facts(config: dict[str, Any], problem: Problem, network: Network) -> dict[str, str]:
    """The facts of a run in this process."""
    settings = {f"configuration {name}": repr(value) for name, value in config.items() if name != "plugins"}
    own = {
        "code": f"{__version__}-{code_digest()}",
        "torch": torch.__version__,
        "data": digest({"class": type(problem)} | vars(problem)),
        "graph": digest([network.name, network.rule, *network.identity()]),
    }
    return settings | plugins.digests() | own


def code_digest() -> str:
    """A digest of the source of this package."""
    root = Path(__file__).parents[1]
    total = sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
