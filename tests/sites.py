"""Federations of real sites over loopback, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from docom.sites import Site, make_keys
from launching import free_port


def federation(folder: Path, names: Sequence[str], reachable: Sequence[str] | None = None, **settings: Any) -> Path:
    """A members' file and the keys of all of them. reachable: those with an address; by default all."""
    folder.mkdir(parents=True, exist_ok=True)
    members = []
    for name in names:
        member = {"name": name, "key": make_keys(name, folder / "keys")[1]}
        if reachable is None or name in reachable:
            member["address"] = f"127.0.0.1:{free_port()}"
        members.append(member)
    links = {} if {"links", "topology"} & settings.keys() else {"topology": "ring"}
    content = {"name": "test", "members": members, "patience": 30, "heartbeat": 1} | links | settings
    path = folder / "federation.yaml"
    path.write_text(yaml.dump(content))
    return path


def all_sites(path: Path, names: Sequence[str]) -> list[Site]:
    return [Site(path, name) for name in names]
