"""The folder of a run: what was asked (config.yaml), what was measured (metrics.jsonl), and what came out.

=====================  ======================================================================================
``config.yaml``        the complete configuration; running it again gives the same numbers
``metrics.jsonl``      one flushed line an evaluation
``checkpoint/``        the last two checkpoints
``model.safetensors``  the average model, one tensor a parameter
``summary.json``       final values, network, messages, status
``provenance.json``    versions, commit, machine, command
=====================  ======================================================================================
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from docom.layout import Layout
from docom.records import Record


class RunFolder:
    """A run's files. Everything but the growing metrics is written to a temporary name and renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoint"

    def create(self, config: str, provenance: dict[str, Any]) -> None:
        """Start the folder with an empty list of records; what another run left here must not pass for this one's."""
        self.path.mkdir(parents=True, exist_ok=True)
        for left in ("summary.json", "model.safetensors"):
            (self.path / left).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self._write("config.yaml", config.encode())
        self._write("provenance.json", json.dumps(provenance, indent=1).encode())
        self._write("metrics.jsonl", b"")

    def append(self, record: Record) -> None:
        """Add a record and flush it."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()

    def settle(self) -> None:
        """Bring the records to the disk: a checkpoint must never outlive the records made before it."""
        with (self.path / "metrics.jsonl").open("a") as file:
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All whole records; a line cut short by a crash is left out."""
        return list(_lines(self.path / "metrics.jsonl"))

    def truncate(self, step: int) -> list[Record]:
        """Drop records from ``step`` on, which a resumed run makes again; return those that stay."""
        kept = [record for record in self.records() if record["step"] < step]
        self._write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept).encode())
        return kept

    def config(self) -> str | None:
        """The configuration as it was written, or None for a new folder."""
        path = self.path / "config.yaml"
        return path.read_text() if path.is_file() else None

    def summary(self) -> dict[str, Any] | None:
        """The summary, or None where the run has not got that far."""
        path = self.path / "summary.json"
        if not path.is_file():
            return None
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None

    def ended(self) -> str | None:
        """How the run ended, "finished" or "stopped"; None where there is more to do."""
        status = (self.summary() or {}).get("status")
        return status if status in ("finished", "stopped") else None

    def finish(self, summary: dict[str, Any], model: Tensor, layout: Layout) -> None:
        """Write the average model and the summary."""
        from safetensors.torch import save

        names = layout.names or tuple(f"tensor{number}" for number in range(len(layout.shapes)))
        row = model.detach().cpu()
        tensors = {
            name: row[span].reshape(shape).contiguous()
            for name, (shape, span) in zip(names, layout.spans(), strict=True)
        }
        self._write("model.safetensors", save(tensors))
        self._write("summary.json", json.dumps(summary, indent=1).encode())

    def note(self, summary: dict[str, Any]) -> None:
        """Write the summary alone, for a run that did not finish."""
        self._write("summary.json", json.dumps(summary, indent=1).encode())

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self.path / name, data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it: whoever looks finds all of it, the one before, or none."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _lines(path: Path) -> Iterator[Record]:
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            return
        if isinstance(record, dict) and "step" in record:
            yield record
