"""The optimizer as torch users know optimizers: groups, schedulers, states, closures, precisions. One agent; see also
`test_optim_processes.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import docom
from docom import schedules
from docom.optim import Decentralized

TWO_POINTS = {
    "docom": docom.DoCoM(lr=0.1, gamma=0.3, beta=0.2),
    "gt-hsgd": docom.GTHSGD(lr=0.1, beta=0.3),
    "allreduce-storm": docom.AllReduceSTORM(lr=0.1, beta=0.3),
}
DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 5, 4, generator=DRAW), torch.randint(0, 3, (6, 5), generator=DRAW)


def small(seed: int = 0, *layers: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), *layers, nn.Tanh(), nn.Linear(6, 3))


def method(name: str) -> docom.Algorithm:
    return TWO_POINTS.get(name) or docom.ALGORITHMS[name](lr=0.1)  # type: ignore[call-arg]


def closure_of(opt: Decentralized, model: nn.Module, step: int, seen: list[Any] | None = None) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(X[step % 6]), Y[step % 6])
        loss.backward()
        if seen is not None:
            seen.append(loss.item())
        return loss

    return closure


def train(opt: Decentralized, model: nn.Module, steps: range) -> None:
    for step in steps:
        opt.step(closure_of(opt, model, step))


def row(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def gradient(model: nn.Module, step: int) -> Tensor:
    loss = F.cross_entropy(model(X[step]), Y[step])
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])


# A torch optimizer


@pytest.mark.parametrize("name", docom.ALGORITHMS)
def test_returns_the_loss_of_the_model_as_held(name: str) -> None:
    model = small()
    opt = Decentralized(model.parameters(), method(name))
    assert isinstance(opt, torch.optim.Optimizer)
    losses = []
    for step in range(12):
        expected = F.cross_entropy(model(X[step % 6]), Y[step % 6]).item()
        losses.append(opt.step(closure_of(opt, model, step)).item())
        assert losses[-1] == expected
    assert sum(losses[6:]) < sum(losses[:6])


@pytest.mark.parametrize("name", docom.ALGORITHMS)
def test_step_after_backward_where_one_gradient_is_enough(name: str) -> None:
    first, second = small(), small()
    one, two = (Decentralized(m.parameters(), method(name)) for m in (first, second))
    if method(name).points_per_step == 2:
        closure_of(two, second, 0)()
        with pytest.raises(RuntimeError, match=r"agent 0, step 0: .* two models on one batch.*closure.*beta=1"):
            two.step()
        return
    for step in range(4):
        one.step(closure_of(one, first, step))
        closure_of(two, second, step)()
        assert two.step() is None
    assert torch.equal(row(first), row(second))


@pytest.mark.parametrize("kind", [docom.DoCoM, docom.GTHSGD, docom.AllReduceSTORM])
def test_beta_one_needs_no_closure(kind: Any) -> None:
    model, plain = small(), small()
    opt, sgd = Decentralized(model.parameters(), kind(lr=0.1, beta=1.0)), torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(5):
        closure_of(opt, model, step)()
        opt.step()
        sgd.zero_grad()
        F.cross_entropy(plain(X[step]), Y[step]).backward()
        sgd.step()
    torch.testing.assert_close(row(model), row(plain))  # alone, they are SGD


def test_two_gradients_on_one_batch_by_hand() -> None:
    model = small()
    opt = Decentralized(model.parameters(), TWO_POINTS["docom"])
    twin = small()
    x, old, v = row(twin), row(twin), torch.zeros(0)
    for step in range(4):
        torch.nn.utils.vector_to_parameters(x, twin.parameters())
        fresh = gradient(twin, step)
        if step == 0:
            v = fresh
        else:
            torch.nn.utils.vector_to_parameters(old, twin.parameters())
            v = fresh + 0.8 * (v - gradient(twin, step))
        old, x = x, x - 0.1 * v
        opt.step(closure_of(opt, model, step))
        torch.testing.assert_close(row(model), x, rtol=1e-5, atol=1e-6)
    kept = torch.cat([p.grad.reshape(-1) for p in model.parameters()])  # type: ignore[union-attr]
    torch.nn.utils.vector_to_parameters(old, twin.parameters())
    torch.testing.assert_close(
        kept, gradient(twin, 3)
    )  # p.grad is that of the model as it was held, not the older one's


def test_defaults_groups_and_repr() -> None:
    model = small()
    opt = Decentralized(model.named_parameters(), docom.DoCoM(lr=0.05), topology="ring", compressor="topk:0.5")
    assert opt.defaults == {"lr": 0.05, "weight_decay": 0.0}
    assert [group["lr"] for group in opt.param_groups] == [0.05]
    said = repr(opt)
    assert all(part in said for part in ("DoCoM(", "agent 0 of 1: ring", "TopK(fraction=0.5", "lr: 0.05"))
    closure_of(opt, model, 0)()
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert (opt.agent, opt.agents, opt.stats["step"], opt.stats["consensus_distance"]) == (0, 1, 0, None)


@pytest.mark.parametrize("name", docom.ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_groups_are_one_group(name: str, dtype: torch.dtype) -> None:
    first, second = small().to(dtype), small().to(dtype)
    one = Decentralized(first.parameters(), method(name))
    two = Decentralized(
        [{"params": second[0].parameters()}, {"params": second[2].parameters(), "lr": 0.1}], method(name)
    )
    for step in range(4):
        for opt, model in ((one, first), (two, second)):
            opt.step(_cast(opt, model, step, dtype))
    assert torch.equal(row(first), row(second))
    # The same number at every coordinate gives the bits of the number itself, whatever is computed with it.
    third = small().to(dtype)
    spread = Decentralized(third.parameters(), method(name))
    spread._rate = lambda step: spread._flat.spread([0.1])  # type: ignore[method-assign]
    for step in range(4):
        spread.step(_cast(spread, third, step, dtype))
    assert torch.equal(row(third), row(first))


def _cast(opt: Decentralized, model: nn.Module, step: int, dtype: torch.dtype) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(X[step].to(dtype)), Y[step])
        loss.backward()
        return loss

    return closure


def test_lr_by_group_by_hand_and_changed_on_the_way() -> None:
    model, plain = small(), small()
    groups = [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[2].parameters()}]
    opt = Decentralized(groups, docom.ChocoSGD(lr=0.1, gamma=0.5), compressor="topk:0.3")
    same = [{"params": plain[0].parameters(), "lr": 0.3}, {"params": plain[2].parameters()}]
    sgd = torch.optim.SGD(same, lr=0.1)
    for step in range(6):
        if step == 3:
            opt.param_groups[0]["lr"] = sgd.param_groups[0]["lr"] = 0.01
        opt.step(closure_of(opt, model, step))
        sgd.zero_grad()
        F.cross_entropy(plain(X[step]), Y[step]).backward()
        sgd.step()
    torch.testing.assert_close(row(model), row(plain))


def test_schedulers() -> None:
    model, plain = small(), small()
    opt, sgd = Decentralized(model.parameters(), docom.DSGD(lr=0.2)), torch.optim.SGD(plain.parameters(), lr=0.2)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4) for o in (opt, sgd)]
    for step in range(6):  # passes through lr = 0
        opt.step(closure_of(opt, model, step))
        sgd.zero_grad()
        F.cross_entropy(plain(X[step]), Y[step]).backward()
        sgd.step()
        for scheduler in schedulers:
            scheduler.step()
    assert opt.param_groups[0]["lr"] == sgd.param_groups[0]["lr"] != 0.2
    torch.testing.assert_close(row(model), row(plain))


def test_a_schedule_of_the_method_goes_on_top_of_the_groups_lr() -> None:
    model, plain = small(), small()
    opt = Decentralized([{"params": model.parameters(), "lr": 0.4}], docom.DSGD(lr=docom.schedules.InverseSqrt(0.1)))
    for step in range(3):
        opt.step(closure_of(opt, model, step))
        with torch.no_grad():
            found = gradient_in_place(plain, step)
            torch.nn.utils.vector_to_parameters(row(plain) - 0.4 / (step + 1) ** 0.5 * found, plain.parameters())
    torch.testing.assert_close(row(model), row(plain))


@torch.enable_grad()
def gradient_in_place(model: nn.Module, step: int) -> Tensor:
    return gradient(model, step)


@pytest.mark.parametrize(
    ("name", "lr", "words"), [("lead", 0.0, "divides"), ("dsgd", -1.0, ">= 0"), ("dsgd", float("nan"), ">= 0")]
)
def test_step_sizes_that_are_none(name: str, lr: float, words: str) -> None:
    model = small()
    opt = Decentralized(model.parameters(), method(name))
    train(opt, model, range(2))
    opt.param_groups[0]["lr"] = lr
    with pytest.raises(ValueError, match=rf"agent 0, step 2: lr of group 0 .*{words}"):
        train(opt, model, range(2, 3))


def test_clipping_inside_the_closure() -> None:
    model = small()
    opt = Decentralized(model.parameters(), docom.DSGD(lr=1.0))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 100 * F.cross_entropy(model(X[0]), Y[0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss

    before = row(model)
    opt.step(closure)
    assert torch.linalg.vector_norm(row(model) - before).item() == pytest.approx(0.01, rel=1e-3)


def test_add_param_group() -> None:
    model, whole = small(), small()
    opt = Decentralized(model[0].parameters(), method("docom"))
    opt.add_param_group({"params": model[2].parameters()})
    other = Decentralized(whole.parameters(), method("docom"))
    train(opt, model, range(3))
    train(other, whole, range(3))
    assert torch.equal(row(model), row(whole))
    with pytest.raises(RuntimeError, match=r"agent 0, step 3: .*before the first step"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


# Saving


@pytest.mark.parametrize("name", docom.ALGORITHMS)
def test_resume(name: str, tmp_path: Path) -> None:
    model, other = small(), small(seed=4)
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}]
    opt = Decentralized(groups, method(name))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2)
    for step in range(3):
        train(opt, model, range(step, step + 1))
        scheduler.step()
    torch.save({"opt": opt.state_dict(), "scheduler": scheduler.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    groups = [{"params": other[0].parameters()}, {"params": other[2].parameters()}]
    again = Decentralized(groups, method(name))
    resumed = torch.optim.lr_scheduler.StepLR(again, 2)
    again.load_state_dict(saved["opt"])
    resumed.load_state_dict(saved["scheduler"])
    assert torch.equal(row(other), row(model))
    for step in range(3, 6):
        for o, m, s in ((opt, model, scheduler), (again, other, resumed)):
            train(o, m, range(step, step + 1))
            s.step()
    assert torch.equal(row(other), row(model))
    assert again.stats == opt.stats
    again.load_state_dict(saved["opt"])  # back to where it was, in an optimizer that has gone on
    assert again.stats["step"] == 3


def test_states_that_do_not_fit() -> None:
    model = small()
    opt = Decentralized(model.parameters(), method("docom"), compressor="topk:0.5")
    train(opt, model, range(2))
    state = opt.state_dict()
    other = Decentralized(small().parameters(), method("docom"), compressor="topk:0.25", seed=1)
    with pytest.raises(
        ValueError, match=r"agent 0, step 0: .*compressor: .*0.5.* there, .*0.25.* here; seed: 0 there, 1 here"
    ):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="no rows of an agent"):
        opt.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())
    state["docom"]["agent"] = 3
    with pytest.raises(ValueError, match="agent: 3 there, 0 here"):
        opt.load_state_dict(state)
    fresh = Decentralized(small().parameters(), method("docom"), compressor="topk:0.5")
    again = Decentralized(small().parameters(), method("docom"), compressor="topk:0.5")
    again.load_state_dict(fresh.state_dict())
    assert again.stats["step"] == 0


# Models of all sorts


def test_frozen_unused_and_empty_parameters() -> None:
    model = small()
    model[2].bias.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.full((3,), 7.0)))
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    opt = Decentralized(model.parameters(), method("docom"), compressor="topk:0.5")
    frozen = model[2].bias.clone()
    train(opt, model, range(3))
    assert torch.equal(model[2].bias, frozen)
    assert torch.equal(model.unused, torch.full((3,), 7.0))  # type: ignore[arg-type]
    assert opt.state_dict()["docom"]["method"]["state"]["x"].shape == (1, 24 + 6 + 18 + 3)
    model[2].bias.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"agent 0, step 3: parameter 5 of group 0 was frozen"):
        train(opt, model, range(3, 4))


def test_thawed_before_the_first_step() -> None:
    model, whole = small(), small()
    model[0].weight.requires_grad_(False)
    opt = Decentralized(model.parameters(), method("docom"))
    model[0].weight.requires_grad_(True)
    other = Decentralized(whole.parameters(), method("docom"))
    train(opt, model, range(3))
    train(other, whole, range(3))
    assert torch.equal(row(model), row(whole))


def test_shared_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.tanh(self.inner(x)))

    torch.manual_seed(0)
    model = Tied()
    opt = Decentralized(model.parameters(), docom.DSGD(lr=0.1))
    before = model.inner.weight.detach().clone()
    loss = F.cross_entropy(model(X[0]), Y[0])
    (expected,) = torch.autograd.grad(loss, [model.inner.weight])
    opt.step(closure_of(opt, model, 0))
    torch.testing.assert_close(model.inner.weight.detach(), before - 0.1 * expected)
    assert model.outer.weight is model.inner.weight


@pytest.mark.parametrize("name", TWO_POINTS)
@pytest.mark.parametrize("known", [True, False])
def test_running_statistics_move_once_a_step(name: str, known: bool) -> None:
    model, alone = small(0, nn.BatchNorm1d(6)), small(0, nn.BatchNorm1d(6))
    opt = Decentralized(model.parameters(), TWO_POINTS[name], model=model if known else None)
    for step in range(4):
        alone.load_state_dict(model.state_dict())
        alone(X[step])
        opt.step(closure_of(opt, model, step))
        assert torch.equal(model[1].running_mean, alone[1].running_mean)
        assert torch.equal(model[1].running_var, alone[1].running_var)
        assert model[1].num_batches_tracked == step + 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_running_statistics_of_a_compiled_model(known: bool) -> None:
    model = small(0, nn.BatchNorm1d(6))
    compiled = torch.compile(model, backend="eager")
    opt = Decentralized(model.parameters(), TWO_POINTS["docom"], model=model if known else None)
    for step in range(3):
        opt.step(closure_of(opt, compiled, step))
    assert model[1].num_batches_tracked == 3


@pytest.mark.parametrize("name", TWO_POINTS)
def test_dropout_is_replayed(name: str) -> None:
    model = small(0, nn.Dropout(0.5))
    opt = Decentralized(model.parameters(), TWO_POINTS[name])
    masks: list[tuple[Any, ...]] = []
    model[1].register_forward_hook(lambda layer, args, out: masks.append((out == 0).tolist()))
    others: list[tuple[float, float]] = []

    def closure() -> Tensor:
        others.append((random.random(), float(np.random.rand())))  # noqa: NPY002
        return closure_of(opt, model, 0)()

    torch.manual_seed(1)
    states = []
    for _ in range(3):
        opt.step(closure)
        states.append(torch.get_rng_state())
    assert len(masks) == 5, "once at the start, then twice a step"
    assert masks[1] == masks[2] != masks[3] == masks[4]
    assert others[1] == others[2] != others[3] == others[4]
    torch.manual_seed(1)
    for state in states:  # as if every closure had been called once
        model(X[0])
        assert torch.equal(torch.get_rng_state(), state)


def test_bf16_autocast() -> None:
    model = small()
    opt = Decentralized(model.parameters(), method("docom"), compressor="topk:0.5")
    losses = []
    for step in range(12):

        def closure(step: int = step) -> Tensor:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(X[step % 6])
                loss = F.cross_entropy(output, Y[step % 6])
            assert output.dtype == torch.bfloat16
            loss.backward()
            return loss

        losses.append(opt.step(closure).item())
    assert sum(losses[6:]) < sum(losses[:6])


def test_bf16_model_moves_by_less_than_its_own_precision() -> None:
    model = nn.Linear(4, 3, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    opt = Decentralized(model.parameters(), docom.DSGD(lr=1e-3))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model.weight.float().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert torch.equal(model.weight, torch.ones(3, 4, dtype=torch.bfloat16)), "1 - 0.001 rounds to 1"
    for _ in range(9):
        opt.step(closure)
    assert torch.equal(model.weight, torch.full((3, 4), 0.99, dtype=torch.bfloat16)), "but ten such steps do not"


def test_grad_scaler() -> None:
    model, plain = small(), small()
    opt, other = (
        Decentralized(model.parameters(), docom.ChocoSGD(lr=0.1)),
        Decentralized(plain.parameters(), docom.ChocoSGD(lr=0.1)),
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        opt.zero_grad()
        loss = F.cross_entropy(model(X[step]), Y[step])
        scaler.scale(loss * (float("inf") if step == 1 else 1)).backward()
        if step == 3:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        if step != 1:
            other.step(closure_of(other, plain, step))
    assert torch.equal(row(model), row(plain))
    assert opt.stats["step"] == 3


def test_grad_scaler_and_closures() -> None:
    model = small()
    two = Decentralized(model.parameters(), method("docom"))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(F.cross_entropy(model(X[0]), Y[0])).backward()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(two, closure=closure_of(two, model, 0))  # torch's own refusal
    for arguments in ((), (closure_of(two, model, 0),)):
        with pytest.raises(RuntimeError, match=r"GradScaler takes no closure.*bf16 autocast, which needs no scaler"):
            scaler.step(two, *arguments)
    one = Decentralized(model.parameters(), docom.DSGD(lr=0.1))
    with pytest.raises(RuntimeError, match=r"call step\(\) after backward"):
        scaler.step(one, closure_of(one, model, 0))


def test_sparse_gradients() -> None:
    table, dense = nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2)
    dense.load_state_dict(table.state_dict())
    for layer in (table, dense):
        opt = Decentralized(layer.parameters(), docom.DSGD(lr=0.1))

        def closure(opt: Decentralized = opt, layer: nn.Module = layer) -> Tensor:
            opt.zero_grad()
            loss = layer(torch.tensor([1, 1, 3])).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            opt.step(closure)
    torch.testing.assert_close(table.weight, dense.weight)


def test_numbers_that_run_away_name_agent_and_step() -> None:
    model = small()
    opt = Decentralized(model.parameters(), method("docom"))
    train(opt, model, range(2))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(X[0] * float("nan")), Y[0])
        loss.backward()
        return loss

    with pytest.raises(
        FloatingPointError, match=r"^agent 0, step 2: NaN or infinity in the tracker; docom has diverged"
    ):
        opt.step(closure)


# Weight decay


@pytest.mark.parametrize("name", docom.ALGORITHMS)
def test_where_there_is_no_gradient_weight_decay_alone_moves_the_model(name: str) -> None:
    """``x_t = x_0 prod_s (1 - lr_s decay)``, group by group: no method's memory adds to it or takes from it."""
    model = small().double()
    groups = [{"params": model[0].parameters(), "weight_decay": 0.3, "lr": 0.2}, {"params": model[2].parameters()}]
    algorithm = docom.ALGORITHMS[name](lr=schedules.InverseSqrt(0.1))  # type: ignore[call-arg]
    opt = Decentralized(groups, algorithm, weight_decay=0.5)
    shrunk = [row(model[0]), row(model[2])]
    for step in range(6):

        def closure() -> Tensor:
            opt.zero_grad()
            loss = sum((p.sum() * 0 for p in model.parameters()), torch.zeros(()))
            loss.backward()
            return loss

        opt.step(closure)
        factor = (step + 1) ** -0.5
        shrunk = [shrunk[0] * (1 - 0.2 * factor * 0.3), shrunk[1] * (1 - 0.1 * factor * 0.5)]
        torch.testing.assert_close(row(model), torch.cat(shrunk), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "name", sorted(set(docom.ALGORITHMS) - {"motef", "qg-dsgdm", "momentum-tracking", "detag"} - TWO_POINTS.keys())
)
def test_weight_decay_of_a_lone_agent_without_momentum_is_that_of_sgd(name: str) -> None:
    model, plain = small().double(), small().double()
    kind = docom.ALGORITHMS[name]
    without = {"lr": 0.1, "momentum": 0.0, "fragments": 1}
    algorithm = kind(**{key: value for key, value in without.items() if key in kind.__dataclass_fields__})
    opt = Decentralized(model.parameters(), algorithm, weight_decay=0.4)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.4)
    for step in range(6):
        for one, net in ((opt, model), (sgd, plain)):
            one.zero_grad()
            F.cross_entropy(net(X[step].double()), Y[step]).backward()
            one.step()
    torch.testing.assert_close(row(model), row(plain), rtol=1e-12, atol=1e-13)


def test_weight_decay_is_no_part_of_momentum() -> None:
    """As in SGDW: ``m = mu m + g; x = x - lr decay x - lr m``."""
    model, twin = small().double(), small().double()
    opt = Decentralized(model.parameters(), docom.AllReduceSGD(lr=0.1, momentum=0.5), weight_decay=0.4)
    x, m = row(twin), torch.zeros(())
    for step in range(5):
        torch.nn.utils.vector_to_parameters(x, twin.parameters())
        loss = F.cross_entropy(twin(X[step].double()), Y[step])
        m = 0.5 * m + torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(twin.parameters()))])
        x = x - 0.1 * 0.4 * x - 0.1 * m
        opt.zero_grad()
        F.cross_entropy(model(X[step].double()), Y[step]).backward()
        opt.step()
    torch.testing.assert_close(row(model), x, rtol=1e-12, atol=1e-13)


def test_weight_decay_leaves_the_old_gradient_where_the_model_was() -> None:
    """``v = g(x) + (1 - beta)(v - g(x_old))`` with the x_old at which v was made, not the one that has decayed since."""
    model, twin = small(), small()
    opt = Decentralized(model.parameters(), TWO_POINTS["docom"], weight_decay=0.4)
    x, old, v = row(twin), row(twin), torch.zeros(0)
    for step in range(5):
        torch.nn.utils.vector_to_parameters(x, twin.parameters())
        fresh = gradient(twin, step)
        if step == 0:
            v = fresh
        else:
            torch.nn.utils.vector_to_parameters(old, twin.parameters())
            v = fresh + 0.8 * (v - gradient(twin, step))
        old, x = x, x - 0.1 * 0.4 * x - 0.1 * v
        opt.step(closure_of(opt, model, step))
        torch.testing.assert_close(row(model), x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"weight_deacy": 0.1}, "unknown key of parameter group 0 'weight_deacy'; did you mean 'weight_decay'"),
        ({"momentum": 0.9}, "unknown key of parameter group 0 'momentum'.*Known: params, lr, weight_decay"),
        ({"beta": 0.2}, r"beta is a setting of the method, the same for all groups: docom.DoCoM\(beta=0.2\)"),
        ({"weight_decay": -0.1}, "group 0: weight_decay is a number >= 0, got -0.1"),
        ({"weight_decay": "0.1"}, "weight_decay is a number >= 0, got '0.1'"),
    ],
)
def test_groups_with_keys_that_would_be_ignored_are_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Decentralized([{"params": small().parameters()} | group], docom.DoCoM(lr=0.1))


def test_more_weight_decay_than_there_is_model_is_refused() -> None:
    model = small()
    with pytest.raises(ValueError, match="weight_decay is a number >= 0, got nan"):
        Decentralized(model.parameters(), method("dsgd"), weight_decay=float("nan"))
    opt = Decentralized(model.parameters(), method("dsgd"), weight_decay=11)
    with pytest.raises(ValueError, match=r"agent 0, step 0: lr \* weight_decay is 1.1; at most 1"):
        train(opt, model, range(1))


# The average model


def test_parameters_changed_behind_the_optimizer_s_back() -> None:
    model = small()
    opt = Decentralized(model.named_parameters(), method("docom"))
    train(opt, model, range(2))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)  # written to, but as they were
    train(opt, model, range(2, 3))
    kept = row(model)
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"agent 0, step 3: 2.weight was changed .*restore_\(\)"):
        train(opt, model, range(3, 4))
    opt.restore_()
    assert torch.equal(row(model), kept)
    train(opt, model, range(3, 4))
    opt.consensus_()
    opt.restore_()
    train(opt, model, range(4, 5))


def test_the_prox_s_output_is_what_is_averaged() -> None:
    model = small()
    opt = Decentralized(model.parameters(), docom.CDProxSGT(lr=0.1, gamma=0.5, prox=docom.L1(0.5)))
    train(opt, model, range(30))
    opt.consensus_()
    assert (row(model) == 0).sum() > 5, "soft thresholding leaves zeros"
    assert opt.stats["consensus_distance"] == 0
    assert opt.stats["measured_at"] == 30


# What cannot be run


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"algorithm": docom.DoCoM}, TypeError, r"such as docom.DoCoM\(lr=0.01\)"),
        ({"algorithm": docom.DoCoM(lr=0.1, b0=5)}, ValueError, "batch of the first step"),
        ({"algorithm": docom.DoCoM(lr=0.1, output="uniform")}, ValueError, "keeps its own models"),
        ({"compressor": "topk:2"}, ValueError, "fraction"),
        ({"algorithm": docom.DSGD(lr=0.1), "compressor": "topk:0.1"}, ValueError, "uncompressed"),
        ({"topology": "torus:2x2"}, ValueError, "torus"),
        ({"buffers": "mean"}, ValueError, '"local" or "average"'),
        ({"buffers": "average"}, ValueError, "pass model="),
        ({"dtype": torch.bfloat16}, ValueError, "float32 or torch.float64"),
        ({"params": [nn.Parameter(torch.ones(2), requires_grad=False)]}, ValueError, "nothing to train"),
        ({"params": [nn.Parameter(torch.ones(2, dtype=torch.complex64))]}, TypeError, "complex64"),
        (
            {"params": [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))]},
            ValueError,
            "one device",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    settings = {"params": small().parameters(), "algorithm": docom.DoCoM(lr=0.1)} | arguments
    with pytest.raises(error, match=words):
        Decentralized(**settings)


# Compression tensor by tensor


def test_small_tensors_are_sent_whole() -> None:
    from docom.compressors import Stamp, parse
    from docom.layout import Layout
    from docom.rng import Key

    layout = Layout(((20, 30), (30,), (5, 6), (6,)))
    x = torch.randn(2, layout.dimension, generator=torch.Generator().manual_seed(1))
    stamp = Stamp(Key(0, 300), torch.arange(2), 0)
    for spec, exact in {"topk:0.1,scope=tensor,whole=30": True, "quantize:2,scope=tensor,whole=30": False}.items():
        bound = parse(spec).bind(layout, torch.float32)
        message = bound.decode(bound.encode(bound.compress(x, None, stamp, [])))
        got = bound.decompress(message, stamp)
        assert torch.equal(got[:, 600:], x[:, 600:]), "30, 30 and 6 numbers"
        assert not torch.equal(got[:, :600], x[:, :600])
        sparse = bound.sparse(message, stamp)
        assert (sparse is not None) == exact
        if sparse is not None:
            assert sparse.indices.shape == (2, 60 + 66)
            assert torch.equal(torch.zeros_like(x).scatter(1, sparse.indices.long(), sparse.values), got)
    for spec in ("topk:0.1,whole=30", "topk:0.1,scope=tensor,whole=-1", "topk:0.1,scope=tensor,whole=0.5"):
        with pytest.raises(ValueError, match="whole"):
            parse(spec)


@pytest.mark.parametrize("spec", ["topk:0.05", "randk:0.1", "quantize:4"])
def test_the_proxy_of_a_tensorwise_compressor_contracts_alike(spec: str) -> None:
    from docom.compressors import parse
    from docom.consensus import ENTRIES
    from docom.layout import Layout

    layout, n = Layout(((1000, 2000), (1000,), (300, 400), (10,))), 8
    compressor = parse(f"{spec},scope=tensor,whole=500")
    small = compressor.smaller(layout, ENTRIES // n, torch.float32)
    full = compressor.bind(layout, torch.float32)
    assert small.dimension < 1.5 * ENTRIES / n < full.dimension
    assert small.delta == pytest.approx(full.delta, rel=0.1)  # the worst tensor's
    kept, whole = small.bits / small.dimension, full.bits / full.dimension
    assert kept == pytest.approx(whole, rel=0.25)


# On a GPU

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@gpu
@pytest.mark.parametrize("name", docom.ALGORITHMS)
def test_gpu_gives_the_cpu_s_numbers(name: str) -> None:
    rows = {}
    for device in ("cpu", "cuda"):
        model = small().double().to(device)
        groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}]
        opt = Decentralized(groups, method(name))
        for step in range(5):

            def closure(opt: Decentralized = opt, model: nn.Module = model, step: int = step) -> Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(X[step].to(model[0].weight)), Y[step].to(model[0].weight.device))
                loss.backward()
                return loss

            opt.step(closure)
        rows[device] = row(model).cpu()
        opt.consensus_()
    torch.testing.assert_close(rows["cuda"], rows["cpu"], rtol=1e-9, atol=1e-10)


@gpu
def test_gpu_dropout_is_replayed_and_fp16_scaled() -> None:
    model = small(0, nn.Dropout(0.5)).cuda()
    opt = Decentralized(model.parameters(), TWO_POINTS["docom"], compressor="topk:0.5")
    masks: list[Any] = []
    model[1].register_forward_hook(lambda layer, args, out: masks.append((out == 0).tolist()))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(X[0].cuda()), Y[0].cuda())
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert masks[1] == masks[2] != masks[3] == masks[4]
    model = small().cuda()
    one = Decentralized(model.parameters(), docom.ChocoSGD(lr=0.1), compressor="topk:0.5")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24)  # overflows fp16 at first
    losses = []
    for step in range(40):
        one.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(X[step % 6].cuda()), Y[step % 6].cuda())
        scaler.scale(loss).backward()
        scaler.step(one)
        scaler.update()
        losses.append(loss.item())
    assert scaler.get_scale() < 2.0**24
    assert 0 < one.stats["step"] < 40  # type: ignore[operator]
    assert sum(losses[-6:]) < sum(losses[:6])
