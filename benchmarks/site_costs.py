"""Bytes that a site counts beside the bytes of its interface: ``python -m benchmarks.site_costs`` (root, Linux).

Two sites in network namespaces with lines of 100 Mbit/s exchange messages with real keys. A site counts what it hands to the
network, with headers, acknowledgements and encryption; the interface also has 66 bytes of Ethernet, IP and TCP for every
packet, which are taken off. Pure acknowledgements of TCP are packets, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from benchmarks.slow_links.hosts import SEGMENT_HEADERS, hosts, set_rate, why_not

from docom.sites import Site, make_keys
from docom.sites.post import SitePost

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "site_costs.json"
NAMES = ("a", "b")
SIZES = {1_000: 2000, 100_000: 200, 2_000_000: 15}  # bytes of a message: how many


def worker(path: Path, name: str) -> None:
    """One site: waits for a line before every size, and says what it has counted after it."""
    post = SitePost(Site(path, name))
    other = 1 - NAMES.index(name)
    data = os.urandom(max(SIZES))
    post.trade({other: b"hello"}, {other: 5}, True).wait()
    print("ready", flush=True)
    for size, count in SIZES.items():
        sys.stdin.readline()
        before, began = post.bytes_on_network, time.monotonic()
        for _ in range(count):
            post.trade({other: data[:size]}, {other: size}, True).wait()
        time.sleep(2)  # the last acknowledgements
        print(json.dumps([post.bytes_on_network - before, time.monotonic() - began - 2]), flush=True)
    post.close()


def measured() -> list[dict[str, Any]]:
    """For every size of messages: bytes counted by a site and on its interface."""
    found = []
    with tempfile.TemporaryDirectory() as folder, hosts(2) as team:
        path = Path(folder) / "federation.yaml"
        members = [
            {"name": name, "key": make_keys(name, Path(folder) / "keys")[1], "address": f"{host.address}:7070"}
            for name, host in zip(NAMES, team, strict=True)
        ]
        path.write_text(yaml.dump({"name": "costs", "members": members, "links": [["a", "b"]], "log": 64}))
        set_rate(team, 100.0)
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(
                host.inside(sys.executable, "-m", "benchmarks.site_costs", "--worker", str(path), name),
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for name, host in zip(NAMES, team, strict=True)
        ]  # fmt: skip
        try:
            for process in processes:
                process.stdout.readline()
            for size, count in SIZES.items():
                before = [host.sent() for host in team]
                for process in processes:
                    process.stdin.write("\n")
                    process.stdin.flush()
                said = [json.loads(process.stdout.readline()) for process in processes]
                after = [host.sent() for host in team]
                for number, ((counted, seconds), old, new) in enumerate(zip(said, before, after, strict=True)):
                    packets = new[1] - old[1]
                    interface = new[0] - old[0] - SEGMENT_HEADERS * packets
                    found.append(
                        {"site": NAMES[number], "message": size, "messages": count, "seconds": round(seconds, 2),
                         "counted": counted, "interface": interface, "packets": packets, "ratio": counted / interface}
                    )  # fmt: skip
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return found


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site_costs", description=__doc__)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.worker:
        worker(Path(given.worker[0]), given.worker[1])
        return
    if (reason := why_not()) is not None:
        raise SystemExit(reason)
    found = measured()
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found:
        print(f"{row['site']}, {row['messages']} x {row['message']} bytes: counted over interface {row['ratio']:.4f}")


if __name__ == "__main__":
    main()
