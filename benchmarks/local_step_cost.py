"""What local steps cost beside the inner steps: computing time of a round, and memory of an agent.

    python benchmarks/local_step_cost.py --agents 2 --million 10

Starts so many processes, each an agent that trains a byte-level transformer with AdamW inside, and prints for every method the
processor time of a round outside of the inner steps, as a share of that of H = 30 inner steps, and the vectors of d numbers
that an agent keeps between two steps, and has at the most within a round, beside the parameters, their gradients and the
inner optimizer's own. Waiting for messages is no processor time; all threads of a process count. Each process computes on one
thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

H = 30
# Method and compressor; the last ones have two messages per round.
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "DiLoCo, dense": ("DiLoCo", {}, "none"),
    "Streaming DiLoCo, 4 fragments": ("StreamingDiLoCo", {"fragments": 4}, "none"),
    "SparseLoCo, mean-topk": ("SparseLoCo", {}, "mean-topk"),
    "SparseLoCo, rank 8": ("SparseLoCo", {}, "mean-lowrank:8"),
    "NoLoCo, dense": ("NoLoCo", {}, "none"),
    "GASLoC, dense": ("GASLoC", {"gamma": 0.5}, "none"),
    "GASLoC, chunk-topk": ("GASLoC", {"gamma": 0.5}, "chunk-topk"),
    "GASLoC, top-k 5%": ("GASLoC", {"gamma": 0.5}, "topk:0.05"),
    "GASLoC, 4 bits": ("GASLoC", {"gamma": 0.5}, "quantize:4"),
    "LoDAdaC, chunk-topk": ("ChocoSGD", {"lr": 1.0, "gamma": 0.5}, "chunk-topk"),
    "Streaming DiLoCo, 4 fragments, mean-tree:2": ("StreamingDiLoCo", {"fragments": 4}, "mean-tree:2"),
    "K-GT, dense": ("KGT", {}, "none"),
    "Compressed K-GT, chunk-topk": ("CompressedKGT", {"gamma": 0.5}, "chunk-topk"),
}


def transformer(million: float) -> Any:
    """A byte-level transformer of about so many million parameters, context 256, and its number of parameters."""
    import torch
    from torch import nn

    layers = 6
    width = max(32, int((million * 1e6 / (12 * layers)) ** 0.5) // 32 * 32)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(256, width)
            layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.out = nn.Linear(width, 256)

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.out(self.layers(self.tokens(x) + self.places(torch.arange(x.shape[1])), mask, is_causal=True))

    torch.manual_seed(0)
    return Model()


class Vectors:
    """Counts tensors of about d numbers that are alive, apart from the given ones."""

    def __init__(self, d: int, apart_from: list[Any]) -> None:
        self.d = d
        self.known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}

    def __call__(self, optimizer: Any) -> float:
        import torch

        gc.collect()
        known = self.known | {
            value.untyped_storage().data_ptr()
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        }
        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for thing in gc.get_objects():
                if isinstance(thing, torch.Tensor) and thing.numel():
                    storage = thing.untyped_storage()
                    if storage.data_ptr() not in known:
                        found[storage.data_ptr()] = storage.nbytes()
        return sum(size for size in found.values() if size >= self.d // 64) / 4 / self.d


@contextmanager
def charged(account: dict[str, float], name: str) -> Iterator[None]:
    """Adds the processor time of what is done here."""
    begun = time.process_time()
    yield
    account[name] = account.get(name, 0.0) + time.process_time() - begun


def agent(name: str, million: float, batch: int, rounds: int) -> dict[str, float]:
    """One agent's figures; every process calls this."""
    import torch

    import docom
    from docom.optim import Decentralized

    torch.set_num_threads(1)
    method, settings, compressor = METHODS[name]
    model = transformer(million)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-4)
    account: dict[str, float] = {}
    step, draw = inner.step, torch.Generator().manual_seed(int(os.environ["RANK"]))

    def inner_step(*given: Any) -> Any:
        with charged(account, "inner"):
            return step(*given)

    # `every` is short so that there is a round to look at; the share is computed for H steps.
    every = 2
    opt = Decentralized(
        model.parameters(),
        getattr(docom, method)(**settings),
        topology="ring",
        compressor=compressor,
        inner=inner,
        every=every,
    )
    inner.step = inner_step
    d = sum(p.numel() for p in model.parameters())
    resting = peak = 0.0
    for number in range((rounds + 1) * every):
        if number == every:  # the first round also opens channels and compiles kernels
            account.clear()
        with charged(account, "gradients"):
            tokens = torch.randint(0, 256, (batch, 257), generator=draw)
            model.zero_grad()
            logits = model(tokens[:, :-1])
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            del logits
        with charged(account, "step"):
            opt.step()
    known = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    count = Vectors(d, known)
    resting = count(inner)
    peak = highest(opt, count, inner)
    steps = rounds * every
    walk = (account["gradients"] + account["inner"]) / steps
    beside = account["step"] - account["inner"]
    return {
        "parameters": d, "inner step": walk, "round": beside / rounds, "share": beside / rounds / (H * walk),
        "vectors": resting, "most vectors": peak,
    }  # fmt: skip


def highest(opt: Any, count: Vectors, inner: Any) -> float:
    """The most vectors during an exchange: looked at whenever a method, a channel or the walk has done a part of it."""
    import torch

    from docom.channels import Channel
    from docom.optim.agent import Agent

    most = [0.0]

    def looking(kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        def looked(*given: Any, **more: Any) -> Any:
            found = plain(*given, **more)
            most[0] = max(most[0], count(inner))
            return found

        setattr(kind, name, looked)

    looking(Agent, "absorb")
    looking(torch.optim.Optimizer, "__init__")
    for kind in {type(channel) for channel in opt._agent.channels.values()} | {Channel}:
        for name in ("begin_push", "begin_mix", "begin_mean"):
            if name in vars(kind):
                looking(kind, name)
    looking(type(opt._agent.channels[next(iter(opt._agent.channels))].transport), "_open")
    for p in opt._flat.parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    while opt._walk.taken != 0 or most[0] == 0:
        opt.step()
    return most[0]


def main() -> None:
    """Start the agents of every method, one method after the other, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--million", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", default="")
    given = parser.parse_args()
    if given.worker:
        found = agent(given.worker, given.million, given.batch, given.rounds)
        if os.environ["RANK"] == "0":
            print("FOUND " + json.dumps(found), flush=True)
        return
    rows = {}
    print(HEAD)
    for name in METHODS:
        if given.only.lower() in name.lower():
            rows[name] = measured(name, given)
            print(line(name, rows[name]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"agents": given.agents, "H": H, "methods": rows}, indent=1) + "\n")


def measured(name: str, given: argparse.Namespace) -> dict[str, float]:
    """The figures of agent 0."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.agents), __file__,
        "--worker", name, "--million", str(given.million), "--batch", str(given.batch), "--rounds", str(given.rounds),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    lines = [text for text in done.stdout.splitlines() if text.startswith("FOUND ")]
    if not lines:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[0].removeprefix("FOUND "))
    return found


def line(name: str, found: dict[str, float]) -> str:
    """A row of the table."""
    return (
        f"| {name} | {found['parameters'] / 1e6:.1f} million | {1e3 * found['inner step']:,.0f} ms | "
        f"{1e3 * found['round']:,.0f} ms | {100 * found['share']:.1f}% | {found['vectors']:.1f} | {found['most vectors']:.1f} |"
    )


HEAD = (
    "| method | parameters | one inner step | a round beside them | of 30 inner steps | vectors kept | at most |\n"
    "|---|---|---|---|---|---|---|"
)


def table(found: dict[str, Any]) -> str:
    """The table of what was kept."""
    return "\n".join([HEAD, *(line(name, values) for name, values in found["methods"].items())])


if __name__ == "__main__":
    main()
