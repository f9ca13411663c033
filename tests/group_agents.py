"""What the four processes of `test_groups.py` run: ``torchrun --nproc-per-node 4 group_agents.py OUT``.

Every case is a way to train the transformer of ``examples/fsdp_agents.py``: agents of two ranks (FSDP2, DDP) and of one. The
ranks of an agent draw the same batch, so that the mean of their gradients has the bits of one gradient.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import docom
from docom.optim import Decentralized, ranks
from docom.optim.ranks import local

STEPS, BREAK = 5, 3
NAMES = ("agents", "ranks")
METHODS: dict[str, tuple[docom.Algorithm, dict[str, Any]]] = {
    "docom": (docom.DoCoM(lr=0.1, gamma=0.5, beta=0.2), {}),
    "clipped": (docom.DSGD(lr=0.1), {}),
    "choco": (docom.ChocoSGD(lr=0.1, gamma=0.3), {"compressor": "topk:0.1"}),
    "quantized": (docom.ChocoSGD(lr=0.1, gamma=0.3), {"compressor": "quantize:4"}),
    "low rank": (docom.ChocoSGD(lr=0.1, gamma=0.3), {"compressor": "lowrank:1"}),
    "auto": (docom.MoTEF(lr=0.1, gamma="auto", beta=0.1), {"compressor": "topk:0.1"}),
    "walk": (docom.ChocoSGD(lr=1.0, gamma=0.5), {"every": 2}),
    "overlap": (docom.ChocoSGD(lr=1.0, gamma=0.5), {"every": 3, "overlap": 1}),
    "corrected": (docom.CompressedKGT(gamma=0.5), {"every": 2}),
    "sparse walk": (docom.ChocoSGD(lr=1.0, gamma=0.5), {"every": 2, "compressor": "topk:0.1"}),
    "host rows": (docom.ChocoSGD(lr=1.0, gamma=0.5), {"every": 2, "compressor": "topk:0.1", "rows": "host"}),
    "bf16 rows": (docom.ChocoSGD(lr=1.0, gamma=0.5), {"every": 2, "compressor": "topk:0.1", "rows": "bf16"}),
    "fragments": (docom.StreamingDiLoCo(fragments=2), {"every": 1, "compressor": "mean-lowrank:1"}),
}

QUICK = ("sparse walk",)
ALONE = ("sparse walk", "docom", "quantized")
PATH = Path(__file__).parents[1] / "examples" / "fsdp_agents.py"
RESUMED = ("walk", "docom", "corrected", "sparse walk", "low rank", "fragments", "bf16 rows", "overlap")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fsdp_agents", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE = example()


class Run:
    """One way to train: the model, its optimizer, and the batches of its agent."""

    def __init__(self, method: str, mesh: DeviceMesh | None, inside: str, seed: int = 0, **more: Any) -> None:
        torch.manual_seed(seed)
        model = EXAMPLE.Transformer(dropout=0.0)
        self.model = model if inside == "one" else EXAMPLE.divided(model, mesh["ranks"], inside)  # type: ignore[index]
        algorithm, settings = METHODS[method]
        # The norm of all gradients is a sum over ranks, with other roundings; single values are clipped to the bit.
        self.clip = nn.utils.clip_grad_norm_ if method == "clipped" else nn.utils.clip_grad_value_
        settings = settings | more
        if "every" in settings:
            settings["inner"] = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.opt = Decentralized(self.model.parameters(), algorithm, seed=3, mesh=mesh, **settings)
        self.text = EXAMPLE.text_of(self.opt.agent, torch.device("cpu"))

    def train(self, draws: range) -> Run:
        for draw in draws:
            torch.manual_seed(1000 * self.opt.agent + draw)
            batch = EXAMPLE.batch_of(self.text, 4)

            def closure(batch: Tensor = batch) -> Tensor:
                self.opt.zero_grad()
                loss: Tensor = self.model(batch)
                loss.backward()
                self.clip(self.model.parameters(), 1.0)
                return loss

            self.opt.step(closure)
        return self

    def row(self) -> Tensor:
        """The whole model, in every rank."""
        return row_of(self.model)


def row_of(model: nn.Module) -> Tensor:
    """All parameters one after the other."""
    return torch.cat([whole(p.detach()).reshape(-1) for p in model.parameters()])


def start() -> Tensor:
    """The model from which all agents start."""
    torch.manual_seed(0)
    return row_of(EXAMPLE.Transformer(dropout=0.0))


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def run_methods(methods: Sequence[str], pairs: DeviceMesh, ones: DeviceMesh | None, out: dict[str, Any]) -> None:
    """The same agents as two ranks and as one."""
    for method in methods:
        for mesh, inside in ((pairs, "fsdp"), (pairs, "ddp"), (ones, "one")):
            if mesh is None:
                continue
            run = Run(method, mesh, inside).train(range(STEPS))
            name = f"{method} {inside}"
            out[name], out[f"{name} stats"] = run.row(), run.opt.measure()
            out[f"{name} shapes"] = [list(shape) for shape in run.opt._flat.layout.shapes]
            run.opt.consensus_()
            out[f"{name} mean"] = run.row()
            run.opt.restore_()
            out[f"{name} restored"] = run.row()


def run_alone(methods: Sequence[str], out: dict[str, Any]) -> None:
    """Four agents of one rank: without a mesh, with one, and with FSDP2 over the one rank."""
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=NAMES)
    for method in methods:
        out[f"{method} without"] = Run(method, None, "one").train(range(STEPS)).row()
        out[f"{method} with"] = Run(method, mesh, "one").train(range(STEPS)).row()
        out[f"{method} sharded"] = Run(method, mesh, "fsdp").train(range(STEPS)).row()


def run_resumed(
    methods: Sequence[str], pairs: DeviceMesh, ones: DeviceMesh | None, folder: Path, out: dict[str, Any]
) -> None:
    """Stop in the middle of a round, and go on: the same, divided otherwise, with fewer ranks, and with more."""
    last = range(BREAK, STEPS)
    for method in methods:
        for inside, other in (("fsdp", "ddp"), ("ddp", "fsdp")):
            place, name = folder / f"{method} {inside}", f"{method} {inside}"
            run = Run(method, pairs, inside).train(range(BREAK))
            run.opt.save(place)
            out[f"{name} saved"] = run.row()
            out[f"{name} on"], out[f"{name} on stats"] = run.train(last).row(), run.opt.stats
            for kind in (inside, other):
                again = continued(method, pairs, kind, place)
                out[f"{name} then {kind}"], out[f"{name} then {kind} stats"] = again.train(last).row(), again.opt.stats
            if ones is not None:
                fewer = continued(method, ones, "one", place)
                out[f"{name} loaded"] = fewer.row()
                out[f"{name} fewer"], out[f"{name} fewer stats"] = fewer.train(last).row(), fewer.opt.stats
        if ones is not None:
            Run(method, ones, "one").train(range(BREAK)).opt.save(folder / f"{method} one")
        dist.barrier()
        out[f"{method} more"] = continued(method, pairs, "fsdp", folder / f"{method} one").train(last).row()


def continued(method: str, mesh: DeviceMesh, inside: str, place: Path) -> Run:
    """Another model, of other numbers, that continues from a folder."""
    run = Run(method, mesh, inside, seed=9)
    run.opt.load(place)
    return run


def run_by_dcp(pairs: DeviceMesh, folder: Path, out: dict[str, Any]) -> None:
    """The state through a user's own calls of torch.distributed.checkpoint."""
    run = Run("sparse walk", pairs, "fsdp").train(range(BREAK))
    place, group = str(folder / f"dcp {run.opt.agent}"), pairs["ranks"].get_group()
    state = run.opt.state_dict()
    saved = {name: tensor.clone() for name, tensor in state.items()}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(place, save_distributed=True), process_group=group)
    out["by dcp on"] = run.train(range(BREAK, STEPS)).row()
    found = run.opt.state_dict()
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(place), process_group=group)
    out["by dcp"] = all(torch.equal(local(found[name]), local(saved[name])) for name in saved)
    run.opt.load_state_dict(found)
    out["by dcp again"] = run.train(range(BREAK, STEPS)).row()


class Uneven(nn.Module):
    """Tensors of which two ranks have unequal parts, or one has none: 3, 5 and 1 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 3), nn.Linear(3, 5), nn.Linear(5, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.scale * self.last(self.second(self.first(inputs).tanh()).tanh())).square().mean()


def by_columns(parameter: nn.Parameter) -> Shard:
    """Matrices with an even number of columns are divided along these."""
    return Shard(1 if parameter.dim() == 2 and parameter.shape[1] % 2 == 0 else 0)


def run_uneven(pairs: DeviceMesh, ones: DeviceMesh | None, folder: Path, out: dict[str, Any]) -> None:
    """Uneven and empty shards, and parameters that FSDP2 leaves whole (a scalar, a bias) beside sharded ones.

    What all ranks hold is gathered in several operations.
    """
    ranks.TOGETHER = 16
    for inside, mesh in (("fsdp", pairs), ("columns", pairs), ("whole", pairs), ("one", ones)):
        if mesh is None:
            continue

        def new(mesh: DeviceMesh = mesh, inside: str = inside) -> tuple[nn.Module, Decentralized]:
            torch.manual_seed(4)
            model = Uneven()
            if inside == "fsdp":
                fully_shard(model, mesh=mesh["ranks"], ignored_params={model.scale, model.second.bias})
            if inside == "columns":
                fully_shard(model, mesh=mesh["ranks"], ignored_params={model.scale}, shard_placement_fn=by_columns)
            groups = [
                {"params": [p for p in model.parameters() if p is not model.scale]}, {"params": [model.scale], "lr": 0.03}
            ]  # fmt: skip
            return model, Decentralized(groups, docom.DoCoM(lr=0.1, gamma=0.5, beta=0.2), weight_decay=0.1, mesh=mesh)

        model, opt = new()
        assert opt._flat.kept
        for draw in range(6):
            if draw == 3:
                opt.save(folder / inside)
                model, opt = new()
                opt.load(folder / ("fsdp" if inside == "columns" else inside))
            draws = torch.Generator().manual_seed(10 * opt.agent + draw)
            inputs = torch.randn(6, 4, generator=draws)

            def closure(model: nn.Module = model, opt: Decentralized = opt, inputs: Tensor = inputs) -> Tensor:
                opt.zero_grad()
                loss: Tensor = model(inputs)
                loss.backward()
                return loss

            opt.step(closure)
        out[f"uneven {inside}"] = torch.cat(
            [whole(p.detach()).reshape(-1) for _, p in sorted(model.named_parameters())]
        )
        out[f"uneven {inside} numbers"] = opt._flat.layout.dimension


def run_together(pairs: DeviceMesh, out: dict[str, Any]) -> None:
    """What the ranks of an agent decide together: that gradients overflowed, and that it is time for messages."""
    rank = dist.get_rank()

    def new(**settings: Any) -> tuple[nn.Module, Decentralized]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        if "every" in settings:
            settings["inner"] = torch.optim.SGD(model.parameters(), lr=0.01)
        return model, Decentralized(model.parameters(), docom.DSGD(lr=0.1), mesh=pairs, **settings)

    def step(model: nn.Module, opt: Decentralized, overflows: bool | None = None) -> None:
        opt.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        if overflows is not None:
            opt.found_inf, opt.grad_scale = torch.tensor(float(overflows)), None  # type: ignore[attr-defined]
        opt.step()

    model, opt = new()
    for overflows in (rank == 3, False):
        step(model, opt, overflows)
    out["skipped"] = opt.stats["step"]
    model, opt = new(every=2)
    before = row_of(model)
    step(model, opt, rank == 3)
    out["skipped inside"] = torch.equal(row_of(model), before)
    model, opt = new(every="0.02s")
    while opt.stats["step"] < 3:
        time.sleep(0.003 * rank)  # clocks of the ranks differ
        step(model, opt)
    out["by time"] = opt.stats["inner_steps"]


def refusal(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        return str(error)
    return ""


def run_refusals(pairs: DeviceMesh, folder: Path, out: dict[str, Any]) -> None:
    """Settings that cannot be run are refused in all processes, in one line."""
    rank, position = dist.get_rank(), dist.get_rank() % 2
    rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    flat = init_device_mesh("cpu", (4,), mesh_dim_names=("ranks",))

    def sharded(mesh: DeviceMesh) -> nn.Module:
        return fully_shard(nn.Linear(8, 8), mesh=mesh)

    def trained(model: nn.Module, **settings: Any) -> None:
        opt = Decentralized(model.parameters(), docom.DSGD(lr=0.1), **settings)
        model(torch.ones(1, 8)).sum().backward()
        opt.step()

    def unlike() -> None:
        torch.manual_seed(position)
        model = nn.Linear(8, 8)
        opt = Decentralized(model.parameters(), docom.DSGD(lr=0.1), mesh=pairs)
        with torch.no_grad():
            model.weight += position
        model(torch.ones(1, 8)).sum().backward()
        opt.step()

    def damaged() -> None:
        run = Run("docom", pairs, "fsdp").train(range(1))
        run.opt.save(folder / "damaged")
        if position == 0:
            path = next((folder / "damaged" / f"agent-{run.opt.agent}").glob("rank-1*"))
            path.write_bytes(path.read_bytes()[:-1] + b"\1")
        dist.barrier()
        run.opt.load(folder / "damaged")

    attempts: dict[str, Callable[[], Any]] = {
        "no agents": lambda: trained(nn.Linear(8, 8), mesh=rows),
        "no mesh": lambda: trained(sharded(pairs["ranks"])),
        "other mesh": lambda: trained(sharded(flat), mesh=pairs),
        "topology": lambda: trained(nn.Linear(8, 8), mesh=pairs, topology=torch.full((4, 4), 0.25).numpy()),
        "shapes": lambda: trained(nn.Linear(8, 8 + position), mesh=pairs),
        "models": unlike,
        "group": lambda: trained(nn.Linear(8, 8), mesh=pairs, group=flat),
        "kind": lambda: trained(nn.Linear(8, 8), mesh="agents"),
        "small": lambda: trained(nn.Linear(8, 1, bias=False), mesh=pairs),
        "damaged": damaged,
        "other method": lambda: Run("quantized", pairs, "fsdp").opt.load(folder / f"{RESUMED[0]} fsdp"),
        "other model": lambda: Decentralized(nn.Linear(8, 8).parameters(), docom.DSGD(lr=0.1), mesh=pairs).load(
            folder / f"{RESUMED[0]} fsdp"
        ),
        "absent": lambda: Run("quantized", pairs, "fsdp").opt.load(folder / "nothing here"),
        "save": lambda: Decentralized(nn.Linear(2, 2).parameters(), docom.DSGD(lr=0.1)).save(folder / f"{rank}"),
    }
    for name, attempt in attempts.items():
        out[f"refused {name}"] = refusal(attempt)


def main() -> None:
    """Everything, and what came out of it to a file per process."""
    torch.set_num_threads(1)
    folder, what = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo")
    out: dict[str, Any] = {}
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES)
    two = DeviceMesh("cpu", [[0], [1]], mesh_dim_names=NAMES)
    ones = two if two.get_coordinate() is not None else None
    if what == "quick":
        run_methods(QUICK, pairs, ones, out)
        run_alone(ALONE[:1], out)
        run_resumed(RESUMED[:1], pairs, ones, folder, out)
        run_uneven(pairs, ones, folder, out)
        run_together(pairs, out)
        run_refusals(pairs, folder, out)
    elif what == "methods":
        run_methods([method for method in METHODS if method not in QUICK], pairs, ones, out)
        run_alone(ALONE[1:], out)
    else:
        run_resumed(RESUMED[1:], pairs, ones, folder, out)
        run_by_dcp(pairs, folder, out)
    torch.save(out, folder / f"rank-{os.environ['RANK']}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
