"""Lines of metrics.jsonl: valid JSON, whatever the numbers, and none that is damaged passes for a record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docom import report
from docom.records import Record, Run, as_json, as_line, from_lines
from docom.runfolder import RunFolder

MADE: list[Record] = [
    {"step": 5 * k, "samples": 100 * k, "loss_worst": 2.5 / (k + 1), "consensus_gap": 1e-7 * k} for k in range(4)
]
DATA = "".join(map(as_line, MADE)).encode()
numbers = st.floats() | st.integers(-(2**53), 2**53)


def refused(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@given(st.lists(st.dictionaries(st.sampled_from(["loss_worst", "bits", "gap"]), numbers)))
def test_what_is_written_is_read(rows: list[Record]) -> None:
    made = [{"step": step} | row for step, row in enumerate(rows)]
    text = "".join(map(as_line, made))
    found, damage = from_lines(text.encode())
    assert damage is None
    assert repr(found) == repr(made)  # not a number is equal to nothing
    for line in text.splitlines():
        json.loads(line, parse_constant=refused)


def test_a_line_says_its_own_checksum() -> None:
    line = as_line({"step": 3, "loss_worst": math.inf})
    assert line == '{"step": 3, "loss_worst": "Infinity", "crc32": "84676a5d"}\n'
    assert crc32(b'{"step": 3, "loss_worst": "Infinity"}') == 0x84676A5D
    assert as_json({"final": [math.nan, -math.inf, 1.5, {"a": math.inf}]}) == (
        '{"final": ["NaN", "-Infinity", 1.5, {"a": "Infinity"}]}'
    )


@settings(max_examples=300)
@given(st.integers(0, len(DATA) - 1), st.integers(0, 255))
def test_no_changed_byte_goes_unnoticed(place: int, byte: int) -> None:
    """Either the damage is told, or what is read is the beginning of what was written."""
    changed = DATA[:place] + bytes([byte]) + DATA[place + 1 :]
    found, damage = from_lines(changed)
    assert found == MADE[: len(found)]
    assert damage is not None or changed == DATA or (len(found) == 3 and place >= DATA.rindex(b"\n", 0, -1))


@pytest.mark.parametrize("place", range(len(as_line(MADE[1]))))
@pytest.mark.parametrize("flip", [1, 32])
def test_in_a_file_of_one_line_too(place: int, flip: int) -> None:
    line = bytearray(as_line(MADE[1]).encode())
    line[place] ^= flip
    found, damage = from_lines(bytes(line))
    assert found == ([] if damage else found[:1])
    assert not found or found == [MADE[1]]  # the end of the line alone may be lost


def test_cut_anywhere_the_whole_lines_are_read() -> None:
    ends = [place + 1 for place, byte in enumerate(DATA) if byte == ord("\n")]
    for cut in range(len(DATA)):
        found, damage = from_lines(DATA[:cut])
        assert damage is None
        assert found == MADE[: len(found)]
        assert len(found) in (sum(end <= cut for end in ends), sum(end - 1 <= cut for end in ends))


def test_files_without_checksums_are_read() -> None:
    old = "".join(json.dumps(record) + "\n" for record in [*MADE, {"step": 20, "loss_worst": math.inf}])
    assert from_lines(old.encode()) == ([*MADE, {"step": 20, "loss_worst": math.inf}], None)
    mixed = old.encode() + as_line({"step": 25}).encode()
    assert from_lines(mixed)[1] == "line 1: not a record (it has no checksum)"


def test_folder_and_report_name_the_damaged_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(DATA.replace(b"100", b"900"))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not a record \(its checksum is wrong\); repair"):
        RunFolder(tmp_path).records()
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not a record \(its checksum"):
        report.load([tmp_path])
    assert RunFolder(tmp_path).reached() == 0
    assert RunFolder(tmp_path).truncate(20) == MADE[:1]
    assert RunFolder(tmp_path).records() == MADE[:1]


def test_numbers_that_ran_away_are_shown_everywhere(tmp_path: Path) -> None:
    import torch

    rows: list[Record] = [
        {"step": 0, "bits": 0, "loss_worst": 1.0, "consensus_gap": 0.0},
        {"step": 5, "bits": 8, "loss_worst": math.inf, "consensus_gap": math.nan},
    ]
    (tmp_path / "run").mkdir()
    for row in rows:
        RunFolder(tmp_path / "run").append(row)
    run = Run(torch.zeros(1, 1), RunFolder(tmp_path / "run").records())
    frame = run.to_frame()
    assert math.isinf(frame["loss_worst"].iloc[1])
    assert math.isnan(frame["consensus_gap"].iloc[1])
    assert run.plot().axes
    page = report.write(report.load([tmp_path / "run"]), tmp_path)
    assert "<html" in page.read_text()
