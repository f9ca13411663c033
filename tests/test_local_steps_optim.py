"""An optimizer with an inner optimizer: the simulator's numbers in real processes, and every trainer's training loop."""

from __future__ import annotations

import gc
import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import docom
import local_step_agents as gang
import trainer_agents as trainers
from docom.optim import Decentralized
from docom.optim.walk import check_every
from launching import finish, torchrun


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, float]]]:
    """What every agent of three processes found."""
    out = tmp_path_factory.mktemp("local-steps") / "out.json"
    done = finish(torchrun(3, str(Path(gang.__file__)), str(out)))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", gang.CASES)
def test_processes_give_the_simulators_bits_also_after_a_resume_within_a_round(
    case: str, differences: list[dict[str, dict[str, float]]]
) -> None:
    for agent in differences:
        assert agent[case]["simulator"] == agent[case]["resumed"] == 0
        assert agent[case]["moved"] > 0.1


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def alone_with(inner: torch.optim.Optimizer, module: nn.Module, every: Any = 3, **more: Any) -> Decentralized:
    return Decentralized(module.parameters(), docom.DiLoCo(lr=1.0, momentum=0.0), inner=inner, every=every, **more)


def loss_of(module: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    return (module(x) - x.sum(1, keepdim=True)).square().mean()


def parameters(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in module.parameters()])


class Signed(torch.optim.Optimizer):
    """A user's own optimizer."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())
        return loss


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        lambda m: torch.optim.AdamW([{"params": m[0].parameters(), "lr": 0.01}, {"params": m[2].parameters()}]),
        lambda m: Signed(m.parameters()),
    ],
)
@pytest.mark.parametrize("closures", [False, True])
def test_an_agent_alone_walks_as_its_inner_optimizer(make: Any, closures: bool) -> None:
    """With one agent, outer step size 1 and no momentum, a round moves the model to where the walk has led."""
    plain, ours = model(), model()
    inner, reference = make(ours), make(plain)
    opt = alone_with(inner, ours)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (opt, reference)]
    for step in range(7):
        for module, optimizer in ((ours, opt), (plain, reference)):

            def closure(module: nn.Module = module, step: int = step) -> torch.Tensor:
                module.zero_grad()
                loss = loss_of(module, step)
                loss.backward()
                return loss

            if closures:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        for schedule in schedules:
            schedule.step()
    assert (parameters(ours) - parameters(plain)).abs().max() <= 1e-6
    assert (parameters(ours) - parameters(model())).abs().max() > 1e-2
    assert inner.param_groups[0]["lr"] == opt.param_groups[0]["lr"] == reference.param_groups[0]["lr"]
    assert opt.stats["step"] == 2
    assert opt.stats["inner_steps"] == 7


def test_muon_inside() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    plain, ours = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
    ours.load_state_dict(plain.state_dict())
    opt = alone_with(torch.optim.Muon(ours.parameters(), lr=0.01), ours)
    reference = torch.optim.Muon(plain.parameters(), lr=0.01)
    for step in range(6):
        for module, optimizer in ((ours, opt), (plain, reference)):
            optimizer.zero_grad()
            loss_of(module, step).backward()
            optimizer.step()
    assert (ours.weight - plain.weight).abs().max() <= 1e-6


def test_bf16_parameters_are_rounded_once_per_round_and_rounding_is_no_part_of_the_walk() -> None:
    """A step size of zero inside: whatever the parameters cannot hold, the row keeps."""
    module = model()
    start = parameters(module)
    opt = Decentralized(
        module.to(torch.bfloat16).parameters(),
        docom.DiLoCo(),
        inner=torch.optim.SGD(module.parameters(), lr=0.0),
        every=2,
    )
    for step in range(4):
        loss_of(module.float(), step)
        module.to(torch.bfloat16)
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
    assert opt._agent is not None
    assert torch.equal(opt._agent.state.x[0], start.to(torch.bfloat16).float())


def test_a_round_by_the_clock() -> None:
    module = model()
    opt = alone_with(torch.optim.SGD(module.parameters(), lr=0.01), module, every="0.05s")
    began, steps = time.monotonic(), 0
    while opt.stats["step"] < 2:  # type: ignore[operator]
        loss_of(module, steps).backward()
        opt.step()
        steps += 1
        assert time.monotonic() - began < 60
    assert time.monotonic() - began >= 0.1
    assert opt.stats["inner_steps"] == steps > 2
    assert [check_every(text) for text in ("60s", "5min", "1.5 h", 30)] == [60, 300, 5400, 0]


def test_an_overflow_in_fp16_leaves_out_an_inner_step_and_no_round() -> None:
    """As GradScaler tells it, by attributes; the scaled gradients are those of the plain step otherwise."""
    plain, ours = model(), model()
    opt, reference = (
        alone_with(torch.optim.SGD(ours.parameters(), lr=0.1), ours),
        torch.optim.SGD(plain.parameters(), lr=0.1),
    )
    for step in range(6):
        overflow = step == 4
        for module, scale in ((ours, 8.0), (plain, 1.0)):
            module.zero_grad()
            (scale * loss_of(module, step)).backward()
        opt.grad_scale, opt.found_inf = torch.tensor(8.0), torch.tensor(float(overflow))  # type: ignore[attr-defined]
        opt.step()
        if not overflow:
            reference.step()
    assert (parameters(ours) - parameters(plain)).abs().max() <= 1e-6
    assert opt.stats["step"] == 2


def test_the_average_within_a_round_is_only_looked_at() -> None:
    module = model()
    opt = alone_with(torch.optim.SGD(module.parameters(), lr=0.1), module)
    for step in range(4):
        module.zero_grad()
        loss_of(module, step).backward()
        opt.step()
    within = parameters(module)
    opt.consensus_()
    assert not torch.equal(parameters(module), within), "the average is that of the last round"
    with pytest.raises(RuntimeError, match="restore_"):
        opt.step()
    opt.restore_()
    assert torch.equal(parameters(module), within)
    opt.step()


# Vectors of d numbers beside parameters, gradients and the inner optimizer's own state: averages 5 at most, gossip 6, and
# methods with two compressed variables more: for each of them a copy and a gap.
KEPT: dict[str, tuple[docom.Algorithm, str, int]] = {
    "diloco": (docom.DiLoCo(), "none", 4),
    "streaming-diloco": (docom.StreamingDiLoCo(fragments=1), "none", 5),
    "diloco, tree": (docom.DiLoCo(), "mean-tree:2", 4),
    "streaming-diloco, tree": (docom.StreamingDiLoCo(fragments=4), "mean-tree:2", 5),
    "sparseloco": (docom.SparseLoCo(), "mean-topk:64", 5),
    "noloco": (docom.NoLoCo(), "none", 4),
    "choco-sgd": (docom.ChocoSGD(lr=1.0, gamma=0.5), "topk:0.1", 4),
    "gasloc": (docom.GASLoC(gamma=0.5), "topk:0.1", 5),
    "k-gt": (docom.KGT(), "none", 4),
    "led": (docom.LED(), "none", 4),
    "compressed-k-gt": (docom.CompressedKGT(gamma=0.5), "topk:0.1", 8),
    "docom": (docom.DoCoM(lr=1.0, beta=1.0, gamma=0.5), "topk:0.1", 7),
}


def _storages() -> dict[int, int]:
    """Where the storages of all tensors are, and how many bytes each has."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = (torch.Tensor, torch.nn.Parameter)  # and none of those without memory that compilers leave behind
        tensors = [thing for thing in gc.get_objects() if type(thing) in real]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


@pytest.mark.filterwarnings("ignore:.*tracks pseudo-gradients")
@pytest.mark.parametrize("name", KEPT)
def test_an_agent_keeps_so_many_vectors(name: str) -> None:
    method, compressor, most = KEPT[name]
    others = set(_storages())  # of tests before this one
    torch.manual_seed(0)
    module = nn.Linear(100, 90, bias=False)
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    opt = Decentralized(module.parameters(), method, compressor=compressor, inner=inner, every=2)
    for _ in range(7):
        module.weight.grad = torch.randn(90, 100)
        opt.step()
    assert module.weight.grad is not None
    theirs = {module.weight.untyped_storage().data_ptr(), module.weight.grad.untyped_storage().data_ptr()}
    kept = [size for place, size in _storages().items() if place not in others | theirs]
    vectors = sum(size for size in kept if size >= 4 * 2000) / (4 * 9000)
    assert opt.stats["step"] == 3
    assert vectors == pytest.approx(most, abs=0.1)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"inner": "adamw"}, TypeError, "torch optimizer"),
    ({"every": 0}, ValueError, "every is"),
    ({"every": True}, ValueError, "every is"),
    ({"every": "60"}, ValueError, "every is"),
    ({"overlap": 3, "every": 3}, ValueError, "overlap=3"),
    ({"overlap": -1}, ValueError, "overlap is"),
    ({"overlap": 1, "every": "60s"}, ValueError, "overlap counts"),
    ({"weight_decay": 0.1}, ValueError, "belongs to the inner"),
    ({"inner": None, "every": 3}, ValueError, "belong to local steps"),
    ({"algorithm": docom.DoCoM(lr=1.0)}, ValueError, "two gradients"),
    ({"algorithm": docom.ProxSkip()}, ValueError, "draws the number"),
    (
        {"algorithm": docom.LED(), "inner": "momentum"},
        ValueError,
        "plain.*k-gt and compressed-k-gt take any inner optimizer",
    ),
    ({"algorithm": docom.LED(), "every": "60s"}, ValueError, "same number of inner steps at all agents"),
    ({"algorithm": docom.GTHSGD(lr=1.0)}, ValueError, "two gradients.*compressed-k-gt.*docom with beta=1"),
]


@pytest.mark.parametrize(("change", "error", "words"), WRONG)
def test_what_does_not_go_together_is_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    module = model()
    settings = {"algorithm": docom.DiLoCo(), "inner": torch.optim.SGD(module.parameters(), lr=0.1), "every": 2} | change
    if settings["inner"] == "momentum":
        settings["inner"] = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(error, match=words):
        Decentralized(module.parameters(), **settings)


def test_trackers_warn_that_they_do_not_remove_the_drift() -> None:
    module = model()
    with pytest.warns(UserWarning, match=r"beer tracks pseudo-gradients.*k-gt"):
        Decentralized(
            module.parameters(), docom.BEER(lr=1.0), inner=torch.optim.SGD(module.parameters(), lr=0.1), every=2
        )


def test_the_inner_optimizer_has_the_same_parameters() -> None:
    module, other = model(), model()
    with pytest.raises(ValueError, match="same model"):
        alone_with(torch.optim.SGD(other.parameters(), lr=0.1), module)


# --- trainers of other libraries --------------------------------------------------------------------------------------


@pytest.fixture
def with_trainers() -> Any:
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("train", [trainers.hugging_face, trainers.lightning])
def test_a_trainer_with_one_agent_is_the_trainer(train: Any, with_trainers: None) -> None:
    plain, ours = train(trainers.adam, 3), train(trainers.averaged, 3)
    assert (plain - ours).abs().max() <= 1e-5
    assert plain.abs().max() > 0.1


@pytest.mark.slow
def test_hugging_faces_trainer_resumes_within_a_round(tmp_path: Path, with_trainers: None) -> None:
    whole = trainers.hugging_face(trainers.averaged, 3)
    trainers.hugging_face(trainers.averaged, 3, out=str(tmp_path))
    resumed = trainers.hugging_face(trainers.averaged, 3, resume=str(tmp_path / "checkpoint-5"), out=str(tmp_path))
    assert torch.equal(whole, resumed)


@pytest.mark.slow
def test_agents_inside_trainers_agree_and_are_not_averaged_in_every_step(tmp_path: Path, with_trainers: None) -> None:
    out = tmp_path / "out.json"
    done = finish(torchrun(2, str(Path(trainers.__file__)), str(out)))
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(out.read_text()).values():
        assert len(set(found["together"])) == 1, "the last step ended a round of averages"
        assert len(set(found["by itself"])) == 2, "the trainer itself must not have joined the agents"
        assert not set(found["together"]) & set(found["by itself"])
