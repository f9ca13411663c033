"""Hostile messages: ``python -m benchmarks.site_attacks --messages 1000000``.

Two sites exchange messages that both check, while others send garbage, open connections that prove no key, replay recorded
traffic, use a key that is not listed, and send frames with the key of a member that has gone bad. Prints
and keeps what became of it: messages taken, all of them right; memory before and after; what was refused, by the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from benchmarks.files import write_json
from benchmarks.site_attacks.attacks import Target
from benchmarks.site_faults.networks import Relay, free_port
from benchmarks.site_faults.processes import ROOT

from docom.sites import Site, make_keys

RESULTS = ROOT / "benchmarks" / "results" / "site_attacks.json"
CHANGED_EVERY = 400_000  # bytes of real traffic between two that are changed


class Changing(Relay):
    """A forwarder that records what passes, and changes a bit now and then."""

    def __init__(self, to: int) -> None:
        self.record, self.changed, self.passed = bytearray(), 0, 0
        self.draw, self.hostile = random.Random(1), False
        super().__init__(to)

    def seen(self, data: bytes, to_the_site: bool) -> bytes:
        """See `Relay.seen`."""
        if len(self.record) < 50_000:
            self.record += data
        self.passed += len(data)
        if not self.hostile or self.passed < CHANGED_EVERY:
            return data
        self.passed, changed = 0, bytearray(data)
        changed[self.draw.randrange(len(changed))] ^= 1 << self.draw.randrange(8)
        self.changed += 1
        return bytes(changed)


def attack(folder: Path, messages: int, seconds: float, changes: bool = False, limited: bool = False) -> dict[str, Any]:
    """Send so many hostile messages, or for so long; what became of the sites.

    changes: also change bits of real traffic. limited: whether a member that floods is shut out (`docom.sites.allowance`), so
    that few of its frames are looked at; else all are.
    """
    keys = {name: make_keys(name, folder / "keys")[1] for name in ("a", "b", "bad")}
    port = free_port()
    relay = Changing(port)  # b reaches a through it
    path = folder / "federation.yaml"
    members = [{"name": "a", "key": keys["a"], "address": f"127.0.0.1:{port}"}]
    members += [{"name": name, "key": keys[name]} for name in ("b", "bad")]
    values = {
        "name": "attacked",
        "members": members,
        "links": [["b", "a"], ["bad", "a"]],
        "patience": 300,
        "heartbeat": 0.5,
        "redial": 2,
        "log": 4,
    }
    path.write_text(yaml.dump(values))
    target = Target(Site(path, "bad"), port)
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
        "THROUGH": str(relay.port),
        "LIMITED": "yes" if limited else "",
    }
    command = [sys.executable, "-m", "benchmarks.site_attacks.victim", str(path)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        while len(relay.record) < 20_000 and process.poll() is None:
            time.sleep(0.1)
        target.recording, relay.hostile = bytes(relay.record), changes
        sent, began = _send(target, messages, seconds), time.monotonic()
        relay.hostile = False
        process.stdin.write("\n")
        process.stdin.flush()
        said: dict[str, Any] = json.loads(process.stdout.readline())
        said["seconds to end"] = round(time.monotonic() - began, 1)
    finally:
        process.kill()
        process.wait()
        target.close()
        relay.listener.close()
    return said | {"hostile": sent | {"changed on the way": relay.changed}}


def _send(target: Target, messages: int, seconds: float) -> dict[str, int]:
    ways = (target.garbage, target.replay, target.unlisted_key, target.bad_member, target.flood)
    sent = dict.fromkeys((way.__name__ for way in ways), 0)
    until, turn = time.monotonic() + seconds, 0
    while sum(sent.values()) < messages and time.monotonic() < until:
        way = ways[turn % len(ways)] if turn < 4 * len(ways) or turn % 10 == 0 else target.bad_member
        sent[way.__name__] += way()
        turn += 1
    return sent


def main() -> None:
    """Attack, and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_attacks", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--changes", action="store_true", help="also change bits of real traffic on the way")
    parser.add_argument("--limited", action="store_true", help="shut out a member that floods")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = attack(Path(folder), given.messages, given.seconds, given.changes, given.limited)
    write_json(given.out, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
