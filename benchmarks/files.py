"""Results of a benchmark as a file that is never half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Under a temporary name first."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1) + "\n")
    beside.replace(path)
