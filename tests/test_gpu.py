"""Runs on a GPU: captured steps, the same numbers as on a CPU, and errors that name the step."""

from __future__ import annotations

import pytest
import torch

import docom
from docom import oracles, rng
from docom.bench import parts
from docom.capture import WARM_UP
from docom.channels import Meter, NonFiniteVariable, Opening, parse_gossip
from docom.experiment import Experiment
from docom.layout import Layout
from docom.transports import InProcess
from docom.weights import network
from test_declarations import EveryOther

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def mlp(agents: int = 4) -> docom.problems.MLP:
    draw = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(30 + i, 12, generator=draw), torch.randint(3, (30 + i,), generator=draw)) for i in range(agents)
    ]
    return docom.problems.MLP(data, hidden=8, classes=3)


def lenet() -> docom.problems.LeNet5:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.rand(9 + i, 28, 28, generator=draw), torch.randint(62, (9 + i,), generator=draw)) for i in range(3)]
    return docom.problems.LeNet5(data)


PROBLEMS = {"linear": lambda: docom.problems.LeafSynthetic(agents=5), "mlp": mlp, "lenet": lenet}


@pytest.mark.parametrize("compressor", ["topk:0.05", "quantize:4", "none"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gpu_gives_the_numbers_of_a_cpu(name: str, compressor: str) -> None:
    problem, steps = PROBLEMS[name](), 100 if compressor != "quantize:4" else 10
    algorithm = docom.DoCoM(lr="steps:0.01,factor=0.5,at=30", gamma=0.2, beta=0.1)
    found = {}
    for device in ("cpu", "cuda"):
        experiment = Experiment(
            problem, algorithm, compressor=compressor, batch_size=2, dtype=torch.float64, device=device
        )
        training = experiment.begin()
        for _ in range(steps):
            training.take_step()
        training.settle()
        assert (training.captured is not None) == (device == "cuda")
        found[device] = training
    torch.testing.assert_close(found["cuda"].state.x.cpu(), found["cpu"].state.x, rtol=1e-8, atol=1e-8)
    assert found["cuda"].oracle.samples == found["cpu"].oracle.samples
    assert found["cuda"].channels.rounds() == found["cpu"].channels.rounds()


@pytest.mark.parametrize("name", sorted(docom.algorithms.ALGORITHMS))
def test_every_method_runs_captured_as_it_does_one_kernel_at_a_time(name: str) -> None:
    kind = docom.algorithms.find(name)
    compressed = "compressed" in kind.channels.values()
    hyper = {"lr": 0.01} | ({"gamma": 0.2} if hasattr(kind, "gamma") else {})
    found = []
    for captured in (True, False):
        experiment = Experiment(
            mlp(), kind(**hyper), compressor="topk:0.2" if compressed else "none", batch_size=3,
            dtype=torch.float64, device="cuda",
        )  # fmt: skip
        training = experiment.begin()
        for _ in range(30):
            if not captured:
                training.advances = 0
            training.take_step()
        training.settle()
        found.append(training.algorithm.iterate(training.state))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_a_method_that_looks_at_the_number_of_its_step_has_the_numbers_of_a_cpu() -> None:
    found = {}
    for device in ("cpu", "cuda"):
        experiment = Experiment(mlp(), EveryOther(lr=0.05), batch_size=3, dtype=torch.float64, device=device)
        training = experiment.begin()
        for _ in range(20):
            training.take_step()
        training.settle()
        assert training.captured is None
        found[device] = training.state.x.cpu()
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-9, atol=1e-9)


def test_a_run_that_overflows_names_agent_variable_and_step() -> None:
    problem = docom.problems.LeastSquares(torch.ones(3, 2, 4), torch.ones(3, 2))
    with pytest.raises(FloatingPointError, match=r"agents? .*step \d+: NaN or infinity in the"):
        docom.simulate(
            problem, docom.DoCoM(lr=50.0, gamma=0.5), compressor="topk:0.5", steps=2000, batch_size=1, device="cuda"
        )


@pytest.mark.parametrize("name", PROBLEMS)
def test_large_models_take_their_two_gradients_one_after_the_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for large in (1, 1 << 60):
        monkeypatch.setitem(oracles.LARGE, "gpu", large)
        experiment = Experiment(
            PROBLEMS[name](), docom.DoCoM(lr=0.01, gamma=0.2, beta=0.1), compressor="topk:0.05", batch_size=2,
            dtype=torch.float64, device="cuda",
        )  # fmt: skip
        training = experiment.begin()
        for _ in range(20):
            training.take_step()
        training.settle()
        assert training.captured is not None
        found.append(training.state.x)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compressor", ["topk:0.2", "quantize:4", "none"])
def test_meters_count_in_captured_steps(compressor: str) -> None:
    """What compression kept is the same whether steps are replayed or done one kernel at a time."""
    found = []
    for captured in (True, False):
        experiment = Experiment(
            mlp(),
            docom.DoCoM(lr=0.01, gamma=0.2),
            compressor=compressor,
            batch_size=3,
            dtype=torch.float64,
            device="cuda",
        )
        training = experiment.begin()
        for channel in training.channels.values():
            channel.meter = Meter()
        seen = []
        for _ in range(2):
            for _ in range(20):
                if not captured:
                    training.advances = 0
                training.take_step()
            training.settle()
            assert (training.captured is not None) == captured
            seen += [torch.stack(tuple(channel.meter.read())) for channel in training.channels.values()]
        assert all(channel.meter.read() is None for channel in training.channels.values())
        found.append(torch.stack(seen))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("compressor", parts.LARGE_COMPRESSORS)
def test_a_large_model_takes_at_most_ten_vectors(compressor: str) -> None:
    """Eight of state, and a gradient or a message."""
    dimension = oracles.LARGE["gpu"] // parts.LARGE_AGENTS
    vectors = parts.most_memory(compressor, dimension, "cuda") / (parts.LARGE_AGENTS * dimension * 4)
    assert 8 <= vectors <= 10


class Halting(torch.nn.Module):
    """A module whose code looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) * self.scale.item()


class Waiting(torch.nn.Linear):
    """A module that waits in a way nobody can look out for."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.is_cuda:
            torch.cuda.synchronize()
        return super().forward(inputs)


def pairs_of(problem: docom.problems.MLP) -> list[tuple[torch.Tensor, torch.Tensor]]:
    counts, train = problem.counts.tolist(), problem.train
    return [(x.float(), y) for x, y in zip(train.inputs.split(counts), train.targets.split(counts), strict=True)]


def of_module(module: torch.nn.Module, agents: int, capture: bool, device: str) -> Experiment:
    problem = docom.problems.ModuleProblem(module, pairs_of(mlp(agents)), capture=capture)
    algorithm = docom.DoCoM(lr=0.05, gamma=0.2)
    return Experiment(
        problem, algorithm, compressor="topk:0.2", batch_size=4, dtype=torch.float64, device=device, topology="complete"
    )


def test_a_module_is_captured_where_it_does_the_same_every_time() -> None:
    """With the CPU's numbers either way; random numbers, values that are looked at, or the user's wish keep it from it."""
    nn = torch.nn
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    modules = {
        "plain": (plain, 4, True, True),
        "one agent": (plain, 1, True, True),
        "unwanted": (plain, 4, False, False),
        "dropout": (nn.Sequential(plain, nn.Dropout(0.5)), 4, True, False),
        "halting": (Halting(), 4, True, False),
    }
    for name, (module, agents, capture, captured) in modules.items():
        found = {}
        for device in ("cpu", "cuda"):
            training = of_module(module, agents, capture, device).begin()
            for _ in range(50):
                training.take_step()
            training.settle()
            found[device] = training.state.x.cpu()
        assert (training.captured is not None) == captured, name
        if name != "dropout":  # whose masks are the device's own
            torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-8, atol=1e-8)
    assert torch.rand(3, device="cuda").shape == (3,)


def test_a_module_that_cannot_be_captured_is_told_how_to_run() -> None:
    module = torch.nn.Sequential(Waiting(12, 3))
    training = of_module(module, 4, True, "cuda").begin()
    for _ in range(WARM_UP):
        training.take_step()
    with pytest.raises(RuntimeError, match=rf"step {WARM_UP} cannot be captured.*capture=False"):
        training.take_step()
    training = of_module(module, 4, False, "cuda").begin()
    for _ in range(WARM_UP + 2):
        training.take_step()
    training.settle()
    assert training.captured is None


def opened(compressor: str, kind: str, device: str) -> docom.channels.Channel:
    graph, layout = network("ring", 8, None, 0), Layout(((90, 70), (70,), (90, 70), (7,)))
    transport = InProcess(graph.degrees, device=device)
    at = Opening("model", kind, layout, graph, transport, torch.float32, rng.Key(0, rng.CHANNEL))
    return parse_gossip(compressor).open(at)


def rows_of(channel: docom.channels.Channel, kind: str, rounds: int) -> list[torch.Tensor]:
    """What a channel returns; on a GPU the host must not wait for it once everything is there."""
    device, draw, found = channel.transport.agents.device, torch.Generator().manual_seed(0), []
    if kind == "compressed":
        channel.start(torch.zeros(8, 2 * 90 * 70 + 77, device=device))
    for number in range(rounds):
        x = torch.randn(8, 2 * 90 * 70 + 77, generator=draw).to(device)
        if device.type == "cuda" and number > 1:
            torch.cuda.set_sync_debug_mode("error")
        try:
            got = channel.mean(x) if kind == "mean" else channel.push(x)
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        found.append(got.cpu().clone())
    return found


@pytest.mark.parametrize(
    "compressor", ["mean-tree:2", "mean-tree:4,whole=100", "mean-tree:k=3", "mean-topk:3,rule=senders", "mean-topk:3,chunk=13"]
)  # fmt: skip
def test_averages_have_the_bits_of_a_cpu_and_the_host_does_not_wait(compressor: str) -> None:
    """With eight agents the weights are powers of two, so that it does not matter how products and sums are rounded."""
    on_gpu, on_cpu = (rows_of(opened(compressor, "mean", device), "mean", 5) for device in ("cuda", "cpu"))
    assert all(torch.equal(mine, other) for mine, other in zip(on_gpu, on_cpu, strict=True))


@pytest.mark.parametrize("compressor", ["bins:2", "chunk-topk:3", "chunk-topk:3,chunk=13,indices=short"])
def test_copies_follow_as_on_a_cpu_and_the_host_does_not_wait(compressor: str) -> None:
    on_gpu, on_cpu = (rows_of(opened(compressor, "compressed", device), "compressed", 5) for device in ("cuda", "cpu"))
    for mine, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("compressor", ["mean-tree:2", "mean-topk:3", "bins:2", "chunk-topk:3"])
def test_numbers_that_are_not_finite_are_found_later(compressor: str) -> None:
    kind = "mean" if compressor.startswith("mean") else "compressed"
    channel = opened(compressor, kind, "cuda")
    rows_of(channel, kind, 1)
    channel.check()
    x = torch.zeros(8, 2 * 90 * 70 + 77, device="cuda")
    x[5, 300] = float("nan")
    channel.mean(x) if kind == "mean" else channel.push(x)
    with pytest.raises(NonFiniteVariable, match="agent 5"):
        channel.check()
