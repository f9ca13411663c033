"""Dense bytes per second of every part of a message's way: ``python -m benchmarks.kernels --device cuda``.

A row is what an agent compresses: a float32 matrix. Measured are the selection of `chunk-topk`, the coding of every entry in 2
bits, packing and unpacking on the device, the whole way to the bytes on the host and back, and low rank beside the two matrix
products that it needs, all in GB of dense float32 rows per second: medians with quartiles over short turns of all subjects,
one after the other. ``--report`` puts what is kept into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.files import write_json
from benchmarks.tables import between
from torch import Tensor

from docom import compressors
from docom.bench import Pace, machine
from docom.bench.timing import Spread, Subject, interleave
from docom.compressors import Bound, Stamp
from docom.layout import Layout
from docom.numerics import pack_codes, product, product_transposed, unpack_codes
from docom.rng import CHANNEL, Key

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MAKER = "benchmarks.kernels"
GOAL = 100.0  # GB of the dense row per second
RANK = 8
WIRE = ("chunk-topk", "chunk-topk:64,indices=short", "bins:2", "quantize:4", "topk:0.05", "sign")


def main() -> None:
    """Measure, or write the tables."""
    parser = argparse.ArgumentParser(prog=f"python -m {MAKER}", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--side", type=int, default=4096, help="of the matrix that is an agent's row")
    parser.add_argument("--seconds", type=float, default=6.0, help="for all subjects of a table together")
    parser.add_argument("--out", type=Path, help="results (default: benchmarks/results/kernels_DEVICE.json)")
    parser.add_argument("--report", action="store_true", help="only put what is kept into docs/performance.md")
    given = parser.parse_args()
    kind = torch.device(given.device).type
    out = given.out or RESULTS / f"kernels_{'gpu' if kind == 'cuda' else 'cpu'}.json"
    if not given.report:
        write_json(out, measure(given.device, given.agents, given.side, Pace(seconds=given.seconds)))
        print(table(json.loads(out.read_text())))
        return
    docs = ROOT / "docs" / "performance.md"
    for name in ("cpu", "gpu"):
        path = RESULTS / f"kernels_{name}.json"
        if path.exists():
            docs.write_text(between(docs.read_text(), f"kernels {name}", table(json.loads(path.read_text())), MAKER))


def measure(device: str, agents: int, side: int, pace: Pace) -> dict[str, Any]:
    """All subjects, in GB of dense rows per second."""
    layout = Layout(((side, side),))
    draw = torch.Generator(device).manual_seed(0)
    rows = torch.randn(agents, layout.dimension, device=device, generator=draw)
    stamp = Stamp(Key(0, CHANNEL), torch.arange(agents, device=device), 0)
    found: dict[str, dict[str, list[float]]] = {}
    for title, subjects in (
        ("on the device", _kernels(rows, layout, stamp)),
        ("compress", _compression(rows, layout, stamp)),
        ("to bytes of the host", _encoding(rows, layout, stamp)),
        ("from bytes of the host", _decoding(rows, layout, stamp)),
        ("low rank", _low_rank(rows, layout, stamp, side)),
    ):
        found[title] = {
            name: [rows.nbytes / 1e9 / seconds for seconds in turns]
            for name, turns in interleave(subjects, pace, device).items()
        }
    quartiles = {title: {name: _quartiles(turns) for name, turns in some.items()} for title, some in found.items()}
    return {"machine": machine.facts(device), "agents": agents, "side": side, "GB per second": quartiles}


def _kernels(rows: Tensor, layout: Layout, stamp: Stamp) -> dict[str, Subject]:
    """What reads or writes codes of all entries, beside a copy of the rows."""
    codes = torch.randint(0, 4, rows.shape, device=rows.device, dtype=torch.uint8)
    levels = torch.randint(-15, 16, rows.shape, device=rows.device, dtype=torch.int16)
    two, five = pack_codes(codes, 2), pack_codes(levels, 5, signed=True)
    target, d = torch.empty_like(rows), rows.shape[1]
    return {
        "copy of the rows": lambda: target.copy_(rows),
        "packing 2 bits": lambda: pack_codes(codes, 2),
        "unpacking 2 bits": lambda: unpack_codes(two, d, 2),
        "packing 4 bits and a sign": lambda: pack_codes(levels, 5, signed=True),
        "unpacking 4 bits and a sign": lambda: unpack_codes(five, d, 5, signed=True),
    }


def _bound(name: str, layout: Layout) -> Bound:
    return compressors.parse(name).bind(layout, torch.float32)


def _compression(rows: Tensor, layout: Layout, stamp: Stamp) -> dict[str, Subject]:
    """From rows to messages as tensors."""

    def compress(bound: Bound) -> Subject:
        return lambda: bound.compress(rows, None, stamp, [])

    titles = {
        "selection, chunk-topk, values in full": "chunk-topk:64,values=full",
        "2-bit coding of all entries": "bins:2",
    }
    return {title: compress(_bound(name, layout)) for title, name in titles.items()} | {
        name: compress(_bound(name, layout)) for name in WIRE if name != "bins:2"
    }


def _encoding(rows: Tensor, layout: Layout, stamp: Stamp) -> dict[str, Subject]:
    """From messages as tensors to the bytes that are sent, on the host."""

    def encode(bound: Bound) -> Subject:
        message = bound.compress(rows, None, stamp, [])
        return lambda: bound.encode(message)

    return {name: encode(_bound(name, layout)) for name in WIRE}


def _decoding(rows: Tensor, layout: Layout, stamp: Stamp) -> dict[str, Subject]:
    """From bytes on the host to messages as tensors on the device."""

    def decode(bound: Bound) -> Subject:
        sent = bound.encode(bound.compress(rows, None, stamp, []))
        if not rows.is_cuda:
            return lambda: bound.decode(sent)
        return lambda: bound.decode([torch.frombuffer(bytearray(b), dtype=torch.uint8).to(rows.device) for b in sent])

    return {name: decode(_bound(name, layout)) for name in WIRE}


def _low_rank(rows: Tensor, layout: Layout, stamp: Stamp, side: int) -> dict[str, Subject]:
    """A message of low rank beside the products of the matrix with a factor on either side."""
    bound = _bound(f"lowrank:{RANK}", layout)
    memory = bound.memory(stamp.agents)
    memory = [basis.to(rows.device) for basis in memory]
    matrix, factor = rows.reshape(len(rows), side, side), torch.randn(len(rows), side, RANK, device=rows.device)
    return {
        "two products by torch": lambda: matrix.transpose(1, 2) @ (matrix @ factor),
        "two products of docom": lambda: product_transposed(matrix, product(matrix, factor)),
        f"a message of rank {RANK}": lambda: bound.compress(rows, None, stamp, memory),
    }


def _quartiles(values: list[float]) -> list[float]:
    spread = Spread.of(values)
    return [float(f"{value:.4g}") for value in (spread.low, spread.middle, spread.high)]


def table(results: Mapping[str, Any]) -> str:
    """All subjects, and which reach the goal."""
    facts, lines = results["machine"], []
    where = facts.get("gpu", facts["processor"])
    lines.append(
        f"{where}, torch {facts['torch']}, {results['agents']} rows of {results['side']:,} x {results['side']:,} float32: "
        "GB of these rows per second, medians with quartiles.\n"
    )
    lines += ["| what | subject | GB/s | at least 100 |", "|---|---|---:|---|"]
    for title, subjects in results["GB per second"].items():
        for name, (low, middle, high) in subjects.items():
            met = "yes" if middle >= GOAL else "no"
            lines.append(f"| {title} | `{name}` | {middle:,.4g} ({low:,.4g} to {high:,.4g}) | {met} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
