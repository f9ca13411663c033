"""The optimizer in real processes: the simulator's numbers, resumed or not, and one set of settings for all.

One gang of processes runs everything (`optim_agents.py`); the tests look at what it left.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import docom
import optim_agents as gang
from docom import rng, wire
from docom.compressors import parse
from docom.experiment import Experiment
from docom.optim.parameters import Flat
from plain_forms import agents_agree

N = gang.AGENTS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every agent saw."""
    folder = tmp_path_factory.mktemp("agents")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N)]
    script = str(Path(gang.__file__))
    done = subprocess.run([*command, script, str(folder)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"agent-{agent}.pt", weights_only=True) for agent in range(N)]


class Backward(docom.problems.ModuleProblem):
    """Gradients by a plain ``backward`` at one agent after the other, as a training loop computes them."""

    def gradients(self, points: Any, samples: Any, agents: Tensor, noise: int = 0) -> list[Tensor]:
        found = []
        for point in points:
            rows = []
            for x, sample, agent in zip(point, samples, agents.tolist(), strict=True):
                module = self.model(x)
                inputs, targets = self.data[agent]
                F.cross_entropy(module(inputs[sample]), targets[sample]).backward()
                rows.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]))  # type: ignore[union-attr]
            found.append(torch.stack(rows))
        return found


def simulated(case: gang.Case, kind: type = Backward, steps: int = gang.STEPS, module: Any = None) -> Any:
    """The same case in the simulator: first gradient on one batch, as a loop's first step has it."""
    algorithm, settings = case
    problem = kind(gang.network() if module is None else module, [gang.data(agent) for agent in range(N)])
    experiment = Experiment(
        problem, replace(algorithm, b0=gang.BATCH), batch_size=gang.BATCH, seed=gang.SEED, dtype=torch.float64, exact=True,
        **settings,
    )  # fmt: skip
    experiment._rehearse = lambda: None  # type: ignore[method-assign]  # on rows of another length than the step sizes
    training = experiment.begin()
    for _ in range(steps):
        training.take_step()
    return training


def stacked(results: list[dict[str, Any]], name: str) -> Tensor:
    return torch.stack([result[name] for result in results])


def test_every_method_is_there() -> None:
    assert {algorithm.name for algorithm, _ in gang.CASES.values()} == set(docom.ALGORITHMS)


@pytest.mark.parametrize("name", gang.CASES)
def test_same_bits_as_the_simulator(results: list[dict[str, Any]], name: str) -> None:
    training = simulated(gang.CASES[name])
    assert torch.equal(stacked(results, name), training.state.x)
    assert torch.equal(training.state.x[0], training.state.x[1]) == agents_agree(gang.CASES[name][0])
    assert training.step == results[0][f"stats {name}"]["step"] == gang.STEPS


@pytest.mark.parametrize("name", ["docom", "gt-hsgd", "dsgd", "motef"])
def test_same_numbers_as_the_simulator_s_own_gradients(results: list[dict[str, Any]], name: str) -> None:
    training = simulated(gang.CASES[name], docom.problems.ModuleProblem)
    torch.testing.assert_close(stacked(results, name), training.state.x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", gang.RESUMED)
def test_resumed_bit_for_bit(results: list[dict[str, Any]], name: str) -> None:
    assert torch.equal(stacked(results, f"resumed {name}"), stacked(results, name))
    for result in results:
        assert result[f"resumed stats {name}"] == result[f"stats {name}"]


def test_automatic_consensus_steps_are_those_of_the_simulator(results: list[dict[str, Any]]) -> None:
    algorithm = simulated(gang.CASES["docom auto"], steps=0).algorithm
    assert all(result["gamma"] == [algorithm.gamma, algorithm.gamma_g] for result in results)
    assert algorithm.gamma != algorithm.gamma_g


@dataclass(frozen=True)
class TwoRates(docom.DoCoM):
    """DoCoM with one step size per coordinate."""

    def hyper(self, t: int) -> Any:
        hyper = super().hyper(t)
        model = gang.network()
        groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
        hyper.lr = Flat(groups, torch.float64).spread(gang.RATES)
        return hyper


def test_two_groups(results: list[dict[str, Any]]) -> None:
    for method in ("docom", "lead", "qg-dsgdm"):
        one, equal = stacked(results, method), stacked(results, f"equal groups {method}")
        assert torch.equal(equal, one)
        assert not torch.equal(stacked(results, f"two groups {method}"), one)
    algorithm, settings = gang.CASES["docom"]
    slower = TwoRates(lr=0.1, gamma=algorithm.gamma, beta=algorithm.beta)  # type: ignore[attr-defined]
    assert torch.equal(stacked(results, "two groups docom"), simulated((slower, settings)).state.x)


class Penalised(Backward):
    """The same loss and ``decay / 2 |x|^2``."""

    def gradients(self, points: Any, samples: Any, agents: Tensor, noise: int = 0) -> list[Tensor]:
        found = super().gradients(points, samples, agents, noise)
        return [row + gang.DECAY * point for row, point in zip(found, points, strict=True)]


@pytest.mark.parametrize("name", gang.DECAYED)
def test_weight_decay_is_the_simulator_s_penalty(results: list[dict[str, Any]], name: str) -> None:
    penalised = simulated(gang.CASES[name], Penalised).state.x
    torch.testing.assert_close(stacked(results, f"decayed {name}"), penalised, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(stacked(results, name), penalised, rtol=1e-3)


def test_consensus_and_measures(results: list[dict[str, Any]]) -> None:
    for name in ("docom", "dsgd"):
        rows = stacked(results, name)
        for result in results:
            assert torch.equal(result[f"mean {name}"], results[0][f"mean {name}"])
        torch.testing.assert_close(results[0][f"mean {name}"], rows.mean(0), rtol=1e-14, atol=1e-15)
        distance = float(torch.linalg.vector_norm(rows - rows.mean(0), dim=1).sum())
        assert results[0][f"stats {name}"]["consensus_distance"] == pytest.approx(distance, rel=1e-12)
    # The last absorb is still to come in a loop, so the tracker is that of one step less.
    before = simulated(gang.CASES["docom"], steps=gang.STEPS - 1)
    tracker = before.state.g
    error = float(torch.linalg.vector_norm(tracker - tracker.mean(0), dim=1).sum())
    assert results[0]["stats docom"]["tracking_error"] == pytest.approx(error, rel=1e-12)
    torch.testing.assert_close(tracker.mean(0), before.state.v.mean(0), rtol=1e-12, atol=1e-14)
    assert results[0]["stats dsgd"]["tracking_error"] is None


@pytest.mark.parametrize("name", ["docom", "dsgd", "docom by tensor", "star"])
def test_bytes(results: list[dict[str, Any]], name: str) -> None:
    algorithm, settings = gang.CASES[name]
    training = simulated(gang.CASES[name])
    layout = training.oracle.problem.layout
    size = parse(settings["compressor"]).bind(layout, torch.float64).num_bytes
    # A loop's T-th step ends with the model's message; the simulator's with the tracker's.
    messages = 2 * gang.STEPS - 1 if len(algorithm.channels) == 2 else gang.STEPS
    degrees = training.channels.network.degrees
    for result, degree in zip(results, degrees, strict=True):
        assert result[f"stats {name}"]["bytes"] == messages * degree * (size + wire.HEADER_SIZE)
        assert result[f"stats {name}"]["wire_bytes"] == messages * sum(degrees) * size
    share = messages / (gang.STEPS * len(algorithm.channels))
    assert results[0][f"stats {name}"]["wire_bytes"] == pytest.approx(share * training.channels.wire_bytes)
    assert results[0][f"stats {name}"]["bits"] == pytest.approx(share * training.channels.bits)


def test_bf16_model_with_float32_rows(results: list[dict[str, Any]]) -> None:
    rows = torch.cat([result["bf16 rows"] for result in results])
    models = stacked(results, "bf16")
    assert rows.dtype == torch.float32
    assert models.dtype == torch.bfloat16
    assert torch.equal(models, rows.to(torch.bfloat16))
    assert not torch.equal(models.float(), rows)
    close = simulated(gang.CASES["docom"]).state.x
    start = torch.cat([p.detach().reshape(-1) for p in gang.network().parameters()])
    assert torch.linalg.vector_norm(rows - close) < 0.2 * torch.linalg.vector_norm(close - start)


def test_one_agent_s_overflow_is_everybody_s_skipped_step(results: list[dict[str, Any]]) -> None:
    models = [gang.network(dtype=torch.float32) for _ in range(N)]
    algorithm, settings = gang.CASES["choco-sgd"]
    assert [result["scaler steps"] for result in results] == [2] * N
    assert [result["scale"] for result in results] == [4.0, 4.0, 2.0, 4.0]

    class Skipped(Backward):
        """The batches of draws 0 and 2."""

        def gradients(self, points: Any, samples: Any, agents: Tensor, noise: int = 0) -> list[Tensor]:
            counts = torch.tensor([20] * len(agents))
            key = rng.Key(gang.SEED, rng.BATCH)
            first = torch.equal(samples, rng.batch_indices(key, agents, 0, counts, gang.BATCH))
            samples = samples if first else rng.batch_indices(key, agents, 2, counts, gang.BATCH)
            return super().gradients(points, samples, agents, noise)

    problem = Skipped(models[0], [gang.data(agent) for agent in range(N)])
    run = docom.simulate(
        problem,
        replace(algorithm, b0=gang.BATCH),
        steps=2,
        batch_size=gang.BATCH,
        seed=gang.SEED,
        exact=True,
        **settings,
    )
    assert torch.equal(stacked(results, "scaler"), run.x)


def test_running_statistics(results: list[dict[str, Any]]) -> None:
    network = docom.network("ring", N)
    W = torch.from_numpy(network.matrix.copy())
    for kind in ("local", "average"):
        assert torch.equal(stacked(results, f"{kind} before"), torch.zeros(N, 5, dtype=torch.float64))
        assert [result[f"{kind} count"] for result in results] == [3] * N, "the second call of the closure counts too"
    for result in results:
        assert torch.equal(result["local after"], result["local history"][-1])
    local = torch.stack([result["local history"][0] for result in results])
    mixed = torch.stack([result["average history"][0] for result in results])
    torch.testing.assert_close(mixed, W @ local)
    after = stacked(results, "average after")
    assert torch.equal(after[0], after[3])
    last = torch.stack([result["average history"][-1] for result in results])
    torch.testing.assert_close(after[0], last.mean(0))
    assert not torch.equal(last[0], last[1])


def test_refusals_name_what_differs(results: list[dict[str, Any]]) -> None:
    for agent, result in enumerate(results):
        said = result["refused compressor"]
        assert said.startswith(f"agent {agent}, step 0: ")
        assert "compressor" in said
        assert "fraction=0.3" in said
        assert "fraction=0.4" in said
        assert "agent 2 differs in compressor" in said
        assert "numbers in 2 tensors" in result["refused model"]
        assert "differs in lr" in result["refused lr"]
        assert "load it before the optimizer is made" in result["refused loaded too late"]
        assert result["refused diverged"].startswith(f"agent {agent}, step ")
        assert "lower lr" in result["refused diverged"]


def test_a_process_that_left_is_named_with_the_step(results: list[dict[str, Any]]) -> None:
    for neighbour in (0, N - 2):
        assert results[neighbour]["alone"].startswith(f"agent {N - 1}, step 2: ")
