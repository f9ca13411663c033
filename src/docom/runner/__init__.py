"""One run with a folder: configured, recorded, checkpointed, interruptible, resumable."""

from __future__ import annotations

from docom.provenance import provenance
from docom.runner.execution import Outcome, execute
from docom.runner.parts import assemble, measurement, on_threads

__all__ = ["Outcome", "assemble", "execute", "measurement", "on_threads", "provenance"]
