"""The machine on which a benchmark ran."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from docom import __version__


def facts(device: str) -> dict[str, Any]:
    """Processor, cores, memory, load, versions; the GPU where it is used."""
    import psutil

    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "docom": __version__,
        "torch": torch.__version__,
        "numba": _version("numba"),
        "numpy": _version("numpy"),
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["triton"] = _version("triton")
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name, with the family and model that tell processors of one name apart."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    known = {key.strip(): value.strip() for key, value in known.items()}
    name = known.get("model name", platform.machine())
    return f"{name} (family {known.get('cpu family', '?')}, model {known.get('model', '?')})"
