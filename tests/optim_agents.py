"""What the processes of `test_optim_processes.py` run: ``torchrun ... optim_agents.py OUT``; results go to ``OUT/agent-N.pt``.

The same cases are run by the simulator in the test itself, on the same batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import docom
from docom import rng, schedules
from docom.optim import Decentralized
from plain_forms import with_all_methods

AGENTS, STEPS, BATCH, SEED = 4, 6, 5, 3
Case = tuple[docom.Algorithm, dict[str, Any]]

TOPK, PLAIN = {"compressor": "topk:0.3"}, {"compressor": "none"}
CASES: dict[str, Case] = {
    "docom": (docom.DoCoM(lr=0.1, gamma=0.3, beta=0.2), TOPK),
    "dsgd": (docom.DSGD(lr=0.1), PLAIN),
    "gnsd": (docom.GNSD(lr=0.1), PLAIN),
    "detag": (docom.DeTAG(lr=0.1, rounds=2), PLAIN),
    "gt-hsgd": (docom.GTHSGD(lr=0.1, beta=0.3), PLAIN),
    "choco-sgd": (docom.ChocoSGD(lr=0.1, gamma=0.3), TOPK),
    "beer": (docom.BEER(lr=0.05, gamma=0.2), TOPK),
    "cedas": (docom.CEDAS(lr=0.1, gamma=0.3), {"compressor": "quantize:4"}),
    "cdproxsgt": (docom.CDProxSGT(lr=0.05, gamma=0.3), TOPK),
    "motef": (docom.MoTEF(lr=0.05, gamma=0.2), TOPK),
    "lead": (docom.LEAD(lr=0.1, gamma=0.3), {"compressor": "quantize:6,unbiased=true"}),
    "d2": (docom.D2(lr=0.1), PLAIN),
    "extra": (docom.EXTRA(lr=0.1), PLAIN),
    "qg-dsgdm": (docom.QGDSGDm(lr=0.1), PLAIN),
    "momentum-tracking": (docom.MomentumTracking(lr=0.02), PLAIN),
    "allreduce-sgd": (docom.AllReduceSGD(lr=0.1, momentum=0.5), PLAIN),
    "allreduce-storm": (docom.AllReduceSTORM(lr=0.1), PLAIN),
    # The same methods with other settings
    "docom beta=1": (docom.DoCoM(lr=0.1, gamma=0.3, beta=1.0), TOPK),
    "docom auto": (docom.DoCoM(lr=0.1, gamma="auto", compressor_g="quantize:4"), TOPK),
    "docom heavy ball, stale": (docom.DoCoM(lr=0.05, gamma=0.2, order="stale", heavy_ball=0.5), TOPK),
    "docom schedules": (docom.DoCoM(lr=schedules.InverseSqrt(0.2), gamma=0.3, beta=schedules.InverseSqrt(0.5)), TOPK),
    "docom by tensor": (docom.DoCoM(lr=0.1, gamma=0.3), {"compressor": "topk:0.2,scope=tensor,whole=6"}),
    "docom random-k": (docom.DoCoM(lr=0.1, gamma=0.2), {"compressor": "randk:0.3"}),
    "docom low rank": (docom.DoCoM(lr=0.1, gamma=0.3), {"compressor": "lowrank:1"}),
    "docom edges": (docom.DoCoM(lr=0.1, gamma=1.0), {"compressor": "edge-lowrank:1,rounds=2"}),
    "allreduce over links": (
        docom.AllReduceSGD(lr=0.1, momentum=0.5),
        {"compressor": "mean-lowrank:1,over=links,sides=1,values=bf16", "topology": "exponential"},
    ),
    "allreduce of the largest": (
        docom.AllReduceSGD(lr=0.1),
        {"compressor": "mean-topk:2,chunk=3,decay=1", "topology": "path"},
    ),
    "prox": (docom.CDProxSGT(lr=0.05, gamma=0.3, prox=docom.L1(0.01)), TOPK),
    "star": (docom.DoCoM(lr=0.1, gamma=0.2), {"compressor": "quantize:3", "topology": "star"}),
}
CASES = with_all_methods(
    CASES, lambda algorithm: (algorithm, TOPK if "compressed" in algorithm.channels.values() else PLAIN)
)
RESUMED = ("docom", "beer", "lead", "extra", "detag", "docom low rank", "docom edges", "docom random-k", "docom auto",
           "allreduce over links", "allreduce of the largest")  # fmt: skip
DECAY, DECAYED = 0.2, ("choco-sgd", "cedas", "lead", "d2", "extra")
RATES = (0.1, 0.03)  # of the two groups of "two groups"


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small model: the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def data(agent: int) -> tuple[Tensor, Tensor]:
    """An agent's own data: its classes are not equally many."""
    draw = torch.Generator().manual_seed(100 + agent)
    inputs = torch.randn(20, 4, generator=draw, dtype=torch.float64) + agent / 2
    return inputs, torch.randint(0, 3 if agent else 2, (20,), generator=draw)


def batch(agent: int, draw: int) -> tuple[Tensor, Tensor]:
    """What the simulator draws for that agent: draw 0 for the first gradient, t + 1 for step t."""
    inputs, targets = data(agent)
    key, counts = rng.Key(SEED, rng.BATCH), torch.tensor([len(targets)])
    (chosen,) = rng.batch_indices(key, torch.tensor([agent]), draw, counts, BATCH)
    return inputs[chosen], targets[chosen]


def optimizer(module: nn.Module, case: Case, **more: Any) -> Decentralized:
    """The optimizer of a case."""
    algorithm, settings = case
    return Decentralized(module.parameters(), algorithm, seed=SEED, **(settings | more))


def closure(opt: Decentralized, model: nn.Module, pair: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """As in everybody's training loop."""

    def run() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(pair[0]), pair[1])
        loss.backward()
        return loss

    return run


def train(opt: Decentralized, model: nn.Module, draws: range) -> None:
    """One step a batch."""
    for draw in draws:
        opt.step(closure(opt, model, batch(opt.agent, draw)))


def row(model: nn.Module) -> Tensor:
    """All parameters one after the other."""
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def run_cases(out: dict[str, Any]) -> None:
    """Every case, from a model that only agent 0 has: the others start elsewhere and must be given it."""
    for name, case in CASES.items():
        model = network(seed=int(os.environ["RANK"]))
        opt = optimizer(model, case)
        train(opt, model, range(STEPS))
        out[name] = row(model)
        out[f"stats {name}"] = opt.measure()
        if name == "docom auto":
            out["gamma"] = [opt.algorithm.gamma, opt.algorithm.gamma_g]
        if name in ("docom", "dsgd"):
            opt.consensus_()
            out[f"mean {name}"] = row(model)


def run_resumed(out: dict[str, Any], folder: Path) -> None:
    """Stop after some steps, and go on in another optimizer, of another model, from a file."""
    for name in RESUMED:
        model = network()
        opt = optimizer(model, CASES[name])
        train(opt, model, range(3))
        file = folder / f"{opt.agent}.pt"
        torch.save(opt.state_dict(), file)
        model = network(seed=9)
        again = optimizer(model, CASES[name])
        again.load_state_dict(torch.load(file, weights_only=True))
        train(again, model, range(3, STEPS))
        out[f"resumed {name}"] = row(model)
        out[f"resumed stats {name}"] = again.measure()


def run_groups(out: dict[str, Any]) -> None:
    """Two groups with the same lr, and with different ones."""
    for name, rates in {"equal groups": (0.1, 0.1), "two groups": RATES}.items():
        for method in ("docom", "lead", "qg-dsgdm"):
            model = network()
            groups = [
                {"params": layer.parameters(), "lr": lr} for layer, lr in zip((model[0], model[2]), rates, strict=True)
            ]
            algorithm, settings = CASES[method]
            opt = Decentralized(groups, algorithm, seed=SEED, **settings)
            train(opt, model, range(STEPS))
            out[f"{name} {method}"] = row(model)


def run_decay(out: dict[str, Any]) -> None:
    """Weight decay: of methods that step along the gradient itself, the same as a penalty in the loss."""
    for name in DECAYED:
        model = network()
        opt = optimizer(model, CASES[name], weight_decay=DECAY)
        train(opt, model, range(STEPS))
        out[f"decayed {name}"] = row(model)


def run_precisions(out: dict[str, Any]) -> None:
    """A bf16 model over float32 rows, and fp16 gradients of which one agent's overflow once."""
    model = network(dtype=torch.bfloat16)
    opt = optimizer(model, CASES["docom"])
    for draw in range(STEPS):
        inputs, targets = batch(opt.agent, draw)
        opt.step(closure(opt, model, (inputs.to(torch.bfloat16), targets)))
    out["bf16"], out["bf16 rows"] = row(model), opt.state_dict()["docom"]["method"]["state"]["x"].clone()
    model = network(dtype=torch.float32)
    opt = optimizer(model, CASES["choco-sgd"])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for draw in range(3):
        inputs, targets = batch(opt.agent, draw)
        opt.zero_grad()
        loss = F.cross_entropy(model(inputs.float()), targets)
        if draw == 1 and opt.agent == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    out["scaler"], out["scaler steps"], out["scale"] = row(model), opt.stats["step"], scaler.get_scale()


def run_statistics(out: dict[str, Any]) -> None:
    """Running statistics of a BatchNorm, alone and mixed with the neighbours'."""
    for kind in ("local", "average"):
        torch.manual_seed(int(os.environ["RANK"]))
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
        model[1].running_mean.fill_(float(os.environ["RANK"]))  # all must start with agent 0's
        opt = optimizer(model, CASES["docom"], model=model, buffers=kind)
        out[f"{kind} before"] = model[1].running_mean.clone()
        history = []
        for draw in range(3):
            opt.step(closure(opt, model, batch(opt.agent, draw)))
            history.append(model[1].running_mean.clone())
        out[f"{kind} history"], out[f"{kind} count"] = history, int(model[1].num_batches_tracked)
        opt.consensus_()
        out[f"{kind} after"] = model[1].running_mean.clone()


def run_refusals(out: dict[str, Any]) -> None:
    """Processes that were not started alike, and models that are not."""
    agent = int(os.environ["RANK"])
    attempts: dict[str, Callable[[], Any]] = {
        "compressor": lambda: optimizer(network(), CASES["docom"], compressor=f"topk:0.{3 + (agent == 2)}"),
        "model": lambda: optimizer(network() if agent else nn.Linear(2, 2).double(), CASES["docom"]),
        "lr": lambda: Decentralized([{"params": network().parameters(), "lr": 0.1 + agent}], CASES["docom"][0]),
    }

    def loaded_too_late() -> None:
        model = network()
        opt = optimizer(model, CASES["docom"])
        if agent == 1:
            model.load_state_dict(network(seed=5).state_dict())
        train(opt, model, range(1))

    def diverged() -> None:
        model = network()
        opt = optimizer(model, CASES["dsgd"])
        train(opt, model, range(2))
        inputs, targets = batch(agent, 2)
        for _ in range(2):
            opt.step(closure(opt, model, (inputs * float("nan"), targets)))

    attempts |= {"loaded too late": loaded_too_late, "diverged": diverged}
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, FloatingPointError) as error:
            out[f"refused {name}"] = str(error)


def run_alone(out: dict[str, Any]) -> None:
    """The last agent has left; the others find out at their next step. Nothing can be run after this."""
    model = network()
    opt = optimizer(model, CASES["dsgd"], peer_timeout=60)
    train(opt, model, range(2))
    if opt.agent < AGENTS - 1:
        try:
            train(opt, model, range(2, 3))
        except ConnectionError as error:
            out["alone"] = str(error)


def main() -> None:
    """Everything, and what came out of it to a file per agent."""
    folder = Path(sys.argv[1])
    out: dict[str, Any] = {}
    run_cases(out)
    run_resumed(out, folder)
    run_groups(out)
    run_decay(out)
    run_precisions(out)
    run_statistics(out)
    run_refusals(out)
    run_alone(out)
    torch.save(out, folder / f"agent-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
