"""Two sites in one process that exchange known messages and check every one, until they are told to stop.

Prints its memory after a warm-up and at the end, how many messages came as they should, and what it has refused.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from docom.sites import Site, allowance
from docom.sites.federation import Address
from docom.sites.post import SitePost

WARM_UP = 200  # messages


def message(name: str, number: int) -> bytes:
    """What a site sends as its number so and so."""
    return f"{name} {number:012d}".encode() * 50


def work(post: SitePost, other: int, stop: threading.Event, found: dict[str, Any]) -> None:
    """Exchange messages until told to stop; both sites agree on the last one by saying so in it."""
    me, them, number = post.site.name, post.site.federation.names[other], 0
    while True:
        ends = stop.is_set() and number >= WARM_UP
        mine = message(me, number) + (b"end" if ends else b"...")
        came = bytes(post.trade({other: mine}, {other: len(mine)}, True).wait()[other])
        if came[:-3] != message(them, number):
            found["wrong"] = number
            return
        number += 1
        found["messages"] = number
        if number == WARM_UP:
            found["memory"] = psutil.Process().memory_info().rss
        if ends or came.endswith(b"end"):
            return


def look_at_memory(stop: threading.Event, found: list[float]) -> None:
    """The memory of this process in MB, every ten seconds."""
    while not stop.wait(10):
        found.append(round(psutil.Process().memory_info().rss / 1e6, 1))


def main(path: Path) -> None:
    """Run until a line comes from outside."""
    if not os.environ["LIMITED"]:
        allowance.RATE = allowance.AT_ONCE = 1e12
    sites = [Site(path, name) for name in ("a", "b")]
    # What the file says stays as it is, also for the digest; but b is led to a over a forwarder, as by a router on the way.
    through = Address.parse(f"127.0.0.1:{os.environ['THROUGH']}")
    object.__setattr__(sites[1].federation.members[0], "address", through)
    posts = [SitePost(site) for site in sites]
    stop = threading.Event()
    found: list[dict[str, Any]] = [{}, {}]
    threads = [
        threading.Thread(target=work, args=(post, 1 - agent, stop, found[agent])) for agent, post in enumerate(posts)
    ]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    over_time: list[float] = []
    threading.Thread(target=look_at_memory, args=(stop, over_time), daemon=True).start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    after = psutil.Process().memory_info().rss
    said = {
        "found": found, "after": after, "memory over time": over_time, "counts": [dict(post.exchange.counts) for post in posts],
        "refused_keys": [post.open().refused_keys for post in posts],
    }  # fmt: skip
    for post in posts:
        post.close()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
