"""One host's process: some steps of a method, timed, with the bytes it sent.

Run by `measuring.measure` in a namespace, with torchrun's variables set and a JSON description as its argument.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.slow_links import search, tasks
from benchmarks.slow_links.settings import BATCH, CATALOGUE, PAUSED
from torch import Tensor, nn

from docom import rng
from docom.algorithms import find
from docom.experiment import Experiment
from docom.problems import Problem
from docom.transports import Framed, TorchPost

Look = Callable[[], float]
GLOO_BYTES = 162  # what gloo itself adds to a message: its header, and the notices that both ends are ready
GLOO_PIECE = 3 * 48  # the same for a piece of an all-reduce, where no acknowledgement is sent alone


def main() -> None:
    """Do one job after the other, and print the results."""
    jobs: list[dict[str, Any]] = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    dist.init_process_group("gloo")
    results = []
    for job in jobs:
        _ask("rate")
        problem = tasks.problem(job["task"], job["shards"], job["data"], dist.get_world_size()).to(torch.float32, "cpu")
        prepare = _gossip if CATALOGUE[job["setting"]].hook is None else _ddp
        results.append(_run(job, *prepare(job, problem)))
    dist.barrier()
    print(json.dumps(results), flush=True)
    dist.barrier()
    os._exit(0)  # torch's own clean-up waits for threads that wait for messages


def _ask(what: str) -> None:
    """Let the parent act while no host sends: set the rate of the next job, read the interfaces' counters."""
    dist.barrier()
    time.sleep(0.2)
    if dist.get_rank() == 0:
        print(what, flush=True)
        sys.stdin.readline()
    dist.barrier()


def _run(job: dict[str, Any], step: Callable[[], None], counted: Callable[[], int], look: Look) -> dict[str, Any]:
    """Warm up, then measure the time; or run until the goal is reached, evaluating at intervals (outside the clock)."""
    times, curve = [], []
    for _ in range(job["warm_up"]):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    steps = torch.tensor(job["steps"])
    if "seconds" in job:  # as many steps as fit into the time
        steps = torch.tensor(max(3, min(job["steps"], int(job["seconds"] / times[-1]))))
        dist.broadcast(steps, 0)
    _ask("counters")
    before, cpu, spent, warm = counted(), time.process_time(), 0.0, job["warm_up"]
    times, reached = [], None
    pauses = random.Random(dist.get_rank())
    for number in range(1, int(steps) + 1):
        started = time.perf_counter()
        if "pause" in job and pauses.random() < PAUSED:
            time.sleep(job["pause"])
        step()
        times.append(time.perf_counter() - started)
        spent += times[-1]
        if "goal" in job and (number + warm) % job["look"] == 0:
            worst = torch.tensor(look())
            dist.all_reduce(worst, op=dist.ReduceOp.MIN if job["task"] == "mnist" else dist.ReduceOp.MAX)
            curve.append((number + warm, round(spent, 3), float(worst)))
            reached = search.reached(job["task"], [(number + warm, float(worst))], job["goal"])
            if reached is not None:
                break
    cpu, sent = time.process_time() - cpu, counted() - before
    _ask("counters")
    return {
        "steps": len(times), "seconds": spent, "cpu": cpu, "bytes": sent, "reached": reached, "curve": curve,
    }  # fmt: skip


def _gossip(told: dict[str, Any], problem: Problem) -> tuple[Callable[[], None], Callable[[], int], Look]:
    setting = CATALOGUE[told["setting"]]
    experiment = Experiment(
        problem, find(setting.algorithm)(**told["hyper"]), topology=setting.topology, compressor=setting.compressor,
        batch_size=BATCH, processes=dist.get_world_size(),
    )  # fmt: skip
    transport = Framed(experiment.network.neighbours, TorchPost(dist.group.WORLD), bytes(16), "cpu")
    experiment.problem = experiment.problem.only(transport.agents.tolist())
    training = experiment.begin(transport)

    def look() -> float:
        return _seen(told["task"], problem, training.algorithm.iterate(training.state))

    return training.take_step, lambda: transport.bytes_sent + GLOO_BYTES * transport.messages_sent, look


def _seen(task: str, problem: Problem, rows: Tensor) -> float:
    """Test accuracy on MNIST, else the loss on the samples of all agents that a search evaluates."""
    if task != "mnist":
        few = problem.sampled(search.TASKS[task]["samples"], 0)
        return float(few.evaluate(rows, gradient=False).loss.max())
    seen = problem.evaluate(rows, gradient=False, agents=[], test=True)
    assert seen.test_correct is not None
    return float(seen.test_correct.min()) / seen.test_count


def _ddp(told: dict[str, Any], problem: Problem) -> tuple[Callable[[], None], Callable[[], int], Look]:
    """torch's own DistributedDataParallel and SGD, on the batches that the simulator draws."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    setting, rank, world = CATALOGUE[told["setting"]], dist.get_rank(), dist.get_world_size()
    start = problem.start(0).to(torch.float32)
    model: nn.Module = problem.model(start)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    wrapped = DistributedDataParallel(model)
    words = sum(parameter.numel() for parameter in model.parameters())
    payload, reductions = 4 * words, 1
    kind, _, argument = str(setting.hook).partition(":")
    if kind == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        payload = 2 * words
    elif kind == "powersgd":
        # The hook needs one plain step before it keeps an error; its own default is a thousand of them.
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=int(argument), start_powerSGD_iter=2, min_compression_rate=1
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        payload, reductions = 4 * _powersgd_words(model, int(argument)), 3  # left factors, right factors, vectors
    optimizer = torch.optim.SGD(model.parameters(), lr=told["hyper"]["lr"], momentum=told["hyper"]["momentum"])
    me, key, counts = torch.tensor([rank]), rng.Key(0, rng.BATCH), problem.counts[rank : rank + 1]
    decay = getattr(problem, "weight_decay", 0.0)
    done = 0

    def step() -> None:
        nonlocal done
        samples = rng.batch_indices(key, me, done, counts, BATCH)
        inputs, targets = _batch(problem, rank, samples[0])
        optimizer.zero_grad()
        loss = (
            problem.loss(wrapped(inputs), targets)
            if told["task"] == "transformer"
            else nn.functional.cross_entropy(wrapped(inputs), targets)
        )
        if decay:
            loss = loss + decay / 2 * sum((p**2).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
        done += 1

    def look() -> float:
        row = torch.cat([p.detach().flatten() for p in model.parameters()])
        return _seen(told["task"], problem, row.unsqueeze(0))

    # The bytes that every process sends in a ring all-reduce, by its definition; torch does not count them. Gloo passes
    # two pieces per process around the ring, once to add up and once to distribute the sums.
    pieces = 4 * (world - 1) * reductions
    return step, lambda: done * (round(2 * (world - 1) / world * payload) + pieces * GLOO_PIECE), look


def _powersgd_words(model: nn.Module, rank: int) -> int:
    words = 0
    for parameter in model.parameters():
        matrix = parameter.view(parameter.shape[0], -1)
        rows, columns = matrix.shape if parameter.ndim > 1 else (0, 0)
        low = rank * (rows + columns)
        words += low if parameter.ndim > 1 and low < parameter.numel() else parameter.numel()
    return words


def _batch(problem: Any, rank: int, samples: Tensor) -> tuple[Tensor, Tensor]:
    if hasattr(problem, "train"):
        inputs, targets = problem.train.take(problem.offsets[rank] + samples, torch.float32)
        return inputs, targets
    inputs, targets = problem.data[rank]
    return inputs[samples], targets[samples]


if __name__ == "__main__":
    main()
