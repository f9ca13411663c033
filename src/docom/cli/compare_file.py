"""Several runs from one file: the ``compare:`` section of a configuration."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from docom.algorithms import find
from docom.conditions import merged
from docom.config import RunConfig, from_dict, read_yaml
from docom.names import nearest

SECTION = "compare"
KEYS = ("seeds", "runs")
MOST_SEEDS = 10_000
NO_INNER = "none"  # on the command line: a run without local steps


def read_comparison(path: Path, overrides: dict[str, Any], seeds: int | None = None) -> list[RunConfig]:
    """The runs of a file, each with its seed: what stands outside of ``compare:``, changed by each of ``runs``.

    overrides: settings that replace those of the file in every run. seeds: how many, instead of the file's.
    """
    base = read_yaml(path)
    if not isinstance(base, dict):
        raise ValueError(f"{path}: a configuration is a mapping of settings, got {type(base).__name__}")
    section = base.pop(SECTION, None) or {}
    if not isinstance(section, dict):
        raise ValueError(f"{path}: {SECTION} is a mapping with seeds and runs, got {section!r}")
    for key in section:
        if key not in KEYS:
            raise nearest(f"key of {SECTION}", str(key), KEYS)
    runs = section.get("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(change, dict) for change in runs):
        raise ValueError(
            f"{path}: {SECTION}: runs is a list of mappings such as {{compressor: quantize:4}}, got {runs!r}"
        )
    numbers = _seeds(section.get("seeds", 1) if seeds is None else seeds)
    return [
        from_dict(plain(changed(changed(base, change), overrides)) | {"seed": seed}, path.parent)
        for change in runs
        for seed in numbers
    ]


def _seeds(given: Any) -> list[int]:
    """A number of seeds from 0 on, or the seeds."""
    if type(given) is int and 1 <= given <= MOST_SEEDS:
        return list(range(given))
    if isinstance(given, list) and given and all(type(seed) is int for seed in given) and len(set(given)) == len(given):
        return given
    raise ValueError(
        f"seeds is a number of seeds >= 1 or a list of different whole numbers such as [3, 7], got {given!r}"
    )


def changed(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A configuration with some settings replaced; of ``hyper`` and ``conditions`` those it names.

    Of the other step sizes it has those that the method has too.
    """
    values = base | change
    before, own = base.get("hyper") or {}, change.get("hyper") or {}
    if not isinstance(before, dict) or not isinstance(own, dict):
        raise ValueError(
            f"hyper is a mapping such as {{lr: 0.01}}, got {before if not isinstance(before, dict) else own!r}"
        )
    name = str(values.get("algorithm"))
    same = kept(before, name, str(base.get("algorithm")))
    values["hyper"] = of_its_kind(same, name, base.get("inner"), values.get("inner")) | own
    if base.get("conditions") or change.get("conditions"):
        values["conditions"] = merged(base.get("conditions") or {}, change.get("conditions") or {})
    if change.keys() & {"algorithm", "compressor"} and "label" not in change:
        values["label"] = None  # it named the other one
    return values


def kept(hyper: dict[str, Any], algorithm: str, before: str) -> dict[str, Any]:
    """Of the step sizes of one method those that another one has too."""
    if algorithm == before:
        return hyper
    has = {field.name for field in fields(find(algorithm))}
    return {name: value for name, value in hyper.items() if name in has}


def of_its_kind(hyper: dict[str, Any], algorithm: str, before: Any, now: Any) -> dict[str, Any]:
    """Step sizes without the learning rate, if it was one along gradients and with an inner optimizer is an outer one now."""
    if (before in (None, NO_INNER)) == (now in (None, NO_INNER)):
        return hyper
    return {name: value for name, value in hyper.items() if name != find(algorithm).learning_rate_name()}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """On the command line 0 means "all": a batch of all data, an evaluation on all samples; and "none" no inner optimizer."""
    optional = {"batch_size": 0, "eval_samples": 0, "inner": NO_INNER, "local_steps": NO_INNER}
    return {key: None if key in optional and value == optional[key] else value for key, value in values.items()}
