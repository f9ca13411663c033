"""The folder of a run: its settings (config.yaml), its measurements (metrics.jsonl), and its results.

=====================  ======================================================================================
``config.yaml``        the complete configuration; running it again gives the same numbers
``plugins/``           copies of the plugins that the configuration names, if any
``metrics.jsonl``      one flushed line per evaluation, with a checksum (see `docom.records.as_line`)
``checkpoint/``        the last two checkpoints
``model.safetensors``  the average model, one tensor per parameter
``tensorboard/``       the measurements again as TensorBoard's event files, with ``--tensorboard``
``summary.json``       final values, network, messages, status
``provenance.json``    versions, commit, machine, command
``owner.json``         while a process works here: which one (see `docom.ownership`)
=====================  ======================================================================================

No run replaces the files of another: `RunFolder.create` refuses to, and only `RunFolder.clear` removes files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from docom.layout import Layout
from docom.records import Record, as_json, as_line, from_lines

FILES = ("config.yaml", "provenance.json", "metrics.jsonl", "model.safetensors", "summary.json")
CHECKPOINT = re.compile(r"^step-\d+(\.[0-9a-f]+)?(\.tmp)?$")
EVENTS = "events.out.tfevents.*"
SHARD = re.compile(r"^(manifest\.json|messages\.safetensors|agents-\d+-\d+\.safetensors)$")


class RunFolder:
    """A run's files. Everything but the growing metrics is written to a temporary name and renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoint"

    def there(self) -> list[str]:
        """Which of the names that a run writes exist already, from docom or not."""
        names = [name for name in FILES if os.path.lexists(self.path / name)]  # includes broken symbolic links
        return names + ["checkpoint"] * bool(self._saved()) + ["tensorboard"] * bool(self._event_files())

    def only_begun(self) -> bool:
        """Whether a process was ended while it started a run here: it has written where the run comes from, and nothing else.

        No settings, no records: to start again loses nothing.
        """
        metrics = self.path / "metrics.jsonl"
        unmeasured = not os.path.lexists(metrics) or (metrics.is_file() and metrics.stat().st_size == 0)
        return set(self.there()) <= {"provenance.json", "metrics.jsonl"} and unmeasured and self._is_ours()

    @property
    def events(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    def _event_files(self) -> list[Path]:
        return list(self.events.glob(EVENTS))

    def _saved(self) -> list[Path]:
        """The checkpoints, complete or not."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else iter(())
        return [path for path in found if CHECKPOINT.match(path.name)]

    def clear(self) -> None:
        """Remove the files of a run, and nothing else.

        Raises:
            FileExistsError: some may not be docom's; then nothing is removed.
        """
        taken, saved = self.there(), self._saved()
        strange = [str(path) for step in saved for path in step.glob("*") if not SHARD.match(path.name)]
        if taken and (strange or not self._is_ours()):
            raise FileExistsError(
                f"{self.path} holds {', '.join(strange[:3] or taken)}, and nothing there says that docom made them; "
                "move them away, or choose another --out"
            )
        plugins = self._object("provenance.json").get("plugins")
        for plugin in plugins if isinstance(plugins, dict) else ():
            (self.path / "plugins" / Path(plugin.removeprefix("plugin ")).name).unlink(missing_ok=True)
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        for step in saved:
            shutil.rmtree(step)
        for file in self._event_files():
            file.unlink()
        for folder in (self.checkpoints, self.events):
            with suppress(OSError):  # there is something else in it
                folder.rmdir()

    def _is_ours(self) -> bool:
        """Whether one of them is a file that only docom writes."""
        with suppress(OSError, ValueError):
            config = (self.path / "config.yaml").read_text()
            if all(re.search(rf"^{key}:", config, re.MULTILINE) for key in ("algorithm", "problem")):
                return True
        if "docom" in self._object("provenance.json"):
            return True
        return any((step / "manifest.json").is_file() for step in self._saved())

    def create(self, config: str, provenance: dict[str, Any], files: Mapping[str, bytes] | None = None) -> None:
        """Start a run with an empty list of records.

        Args:
            config: the configuration as YAML.
            provenance: where the run comes from.
            files: the plugins of the configuration, by their path in the folder.

        Raises:
            FileExistsError: files of a run are there; `clear` removes them.
        """
        others = [name for name, content in (files or {}).items() if self._differs(name, content)]
        if taken := self.there() + others:
            raise FileExistsError(f"{self.path} holds {', '.join(taken)} already")
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in (files or {}).items():
            (self.path / name).parent.mkdir(exist_ok=True)
            self._write(name, content)
        self._write("provenance.json", json.dumps(provenance, indent=1).encode())
        self._write("metrics.jsonl", b"")
        self.describe(config)  # last: a folder that has it is complete

    def _differs(self, name: str, content: bytes) -> bool:
        """Whether there is another file of that name."""
        path = self.path / name
        return os.path.lexists(path) and not (path.is_file() and path.read_bytes() == content)

    def describe(self, config: str) -> None:
        """Write the configuration if it is missing."""
        if self.config() is None:
            self._write("config.yaml", config.encode())

    def launch(self) -> str:
        """The name of the launch that started the run; empty if it had none."""
        return str(self._object("provenance.json").get("launch") or "")

    def append(self, record: Record) -> None:
        """Add a record and flush it."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(as_line(record))
            file.flush()

    def settle(self) -> None:
        """Force the records to the disk: after a crash, the records before a checkpoint must exist if it does."""
        with (self.path / "metrics.jsonl").open("a") as file:
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All records; a last line that a crash has truncated is left out.

        Raises:
            ValueError: a line is damaged.
        """
        found, damage = self._lines()
        if damage is not None:
            raise ValueError(f"{self.path / 'metrics.jsonl'}, {damage}; repair or remove the line")
        return found

    def reached(self) -> int:
        """The step of the last record that can be read; 0 if there is none."""
        found, _ = self._lines()
        return int(found[-1]["step"]) if found else 0

    def truncate(self, step: int) -> list[Record]:
        """Drop records from ``step`` on, which a resumed run makes again, and all after a damaged one; return the others."""
        kept = self.before(step)
        self._write("metrics.jsonl", "".join(map(as_line, kept)).encode())
        return kept

    def before(self, step: int) -> list[Record]:
        """The records before a step, up to the first damaged line."""
        return [record for record in self._lines()[0] if record["step"] < step]

    def _lines(self) -> tuple[list[Record], str | None]:
        path = self.path / "metrics.jsonl"
        return from_lines(path.read_bytes()) if path.is_file() else ([], None)

    def config(self) -> str | None:
        """The configuration as it was written, or None where there is none."""
        path = self.path / "config.yaml"
        return path.read_text(errors="replace") if path.is_file() else None

    def summary(self) -> dict[str, Any] | None:
        """The summary; None if the run has not written it yet, or the file is damaged."""
        return self._object("summary.json") or None

    def _object(self, name: str) -> dict[str, Any]:
        """A JSON object; empty if the file is missing or cannot be read."""
        try:
            found = json.loads((self.path / name).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def ended(self) -> str | None:
        """How the run ended, "finished", "stopped" or "diverged"; None if it is not complete.

        A run that diverged has no model, and may be started again.
        """
        status = (self.summary() or {}).get("status")
        done = status in ("finished", "stopped") or (
            status == "diverged" and (self.path / "model.safetensors").is_file()
        )
        return str(status) if done else None

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
        self._write("summary.json", as_json(summary, indent=1).encode())

    def note(self, summary: dict[str, Any]) -> None:
        """Write the summary alone, for a run that did not finish."""
        self._write("summary.json", as_json(summary, indent=1).encode())

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self.path / name, data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it: a reader finds all of it, the previous one, or none."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
