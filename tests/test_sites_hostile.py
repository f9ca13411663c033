"""Who has no listed key cannot join, read or stop a run, and a member that has gone bad cannot change what others get."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("zmq")
from benchmarks.site_attacks.__main__ import attack


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hostile_messages_change_nothing(tmp_path: Path) -> None:
    found = attack(tmp_path, messages=10**6, seconds=20)
    sent = found["hostile"]
    assert all(sent[way] for way in ("garbage", "flood", "replay", "unlisted_key", "bad_member"))
    for one in found["found"]:
        assert "wrong" not in one
        assert one["messages"] > 200
    a, b = found["counts"]
    assert found["refused_keys"][0] > 0
    refused = ("damaged", "of another run", "of a wrong sender or receiver", "before its greeting")
    assert sum(a.get(why, 0) for why in refused) > sent["bad_member"] / 10, "frames of the bad member"
    assert not any(b.get(why, 0) for why in refused), "nothing of it came to the other one"
    grown = found["after"] - found["found"][0]["memory"]
    assert grown < 64e6, f"memory has grown by {grown / 1e6:.0f} MB"
