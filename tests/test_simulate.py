"""The simulator's front door: what goes in, what comes out, what is counted, and what is refused.

Counts are checked against formulas written out here, not against the library's own.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from math import ceil, comb, log2
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import docom
from conftest import least_squares
from docom.channels import PublicCopies
from docom.compressors import Stamp, parse
from docom.layout import Layout
from docom.loop import Training
from docom.problems import LeafSynthetic, LeastSquares, LogisticRegression, ModuleProblem
from docom.records import Record, Run
from docom.rng import BATCH, Key, batch_indices
from docom.transports import InProcess
from plain_forms import agents_agree, with_all_methods
from test_algorithms_reference import CASES, adapted, compressed
from test_relations import begin

N, M, D = 6, 5, 10
COMPRESSORS = (
    "none", "topk:0.3", "topk:0.3,values=bf16", "topk:0.3,values=8", "topk:0.3,scope=tensor", "randk:0.3", "quantize:4",
    "sign", "lowrank:1", "edge-lowrank:1", "edge-lowrank:1,rounds=2",
)  # fmt: skip
RANDOM = ("topk:0.3,values=8", "randk:0.3", "quantize:4")
GENTLE = docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2)


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    return least_squares(n=N, m=M, d=D)


@pytest.fixture(scope="module")
def classes() -> LeafSynthetic:
    """A model that is a matrix, with labels and unequal agents."""
    return LeafSynthetic(agents=5, classes=3, features=8)


def run(problem: Any, algorithm: Any = GENTLE, **settings: Any) -> Run:
    if isinstance(algorithm, docom.Algorithm):
        algorithm = adapted(algorithm, settings.get("compressor"))
    return docom.simulate(problem, algorithm, **({"steps": 6, "dtype": torch.float64} | settings))


def losses(run: Run) -> list[dict[str, float]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in run.records]


# --- the promised call ------------------------------------------------------------------------------------------------


def test_the_call_of_the_documentation() -> None:
    draw = torch.Generator().manual_seed(0)
    A, b = torch.randn(8, 6, 20, generator=draw), torch.randn(8, 6, generator=draw)
    run = docom.simulate(
        docom.problems.LeastSquares(A, b),
        docom.DoCoM(lr=0.05, gamma=0.3, beta=0.1),
        topology="ring",
        compressor="topk:0.1",
        steps=200, batch_size=None,
        seed=0, dtype=torch.float64, device="cpu", x0=None, eval_every=50, callback=None, until=None,
    )  # fmt: skip
    assert run.x.shape == (8, 20)
    assert run.x.dtype == torch.float64
    assert [record["step"] for record in run.records] == [0, 50, 100, 150, 200]
    assert run.records[-1]["loss_worst"] < run.records[0]["loss_worst"]
    assert len(run.to_frame()) == 5
    assert run.plot().axes
    assert run.mean_model().shape == (20,)


EVERY_MODULE = """
import docom, importlib, pkgutil, types
for module in pkgutil.iter_modules(docom.__path__):
    if module.name != "__main__":
        importlib.import_module(f"docom.{module.name}")
assert callable(docom.simulate), docom.simulate
hidden = [name for name, where in docom._WHERE.items() if where and isinstance(getattr(docom, name), types.ModuleType)]
assert not hidden, hidden
"""


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing a submodule sets an attribute of the package, which must not be one that promises a function."""
    finished = subprocess.run([sys.executable, "-c", EVERY_MODULE], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_the_signature_is_the_promised_one() -> None:
    promised = {
        "topology": "ring", "compressor": "none", "batch_size": None, "seed": 0, "device": "cpu", "x0": None,
        "eval_every": None, "callback": None, "until": None, "weights": None,
    }  # fmt: skip
    parameters = inspect.signature(docom.simulate).parameters
    assert list(parameters)[:2] == ["problem", "algorithm"]
    assert {name: parameters[name].default for name in promised} == promised
    assert {"steps", "dtype"} <= set(parameters)
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name not in ("problem", "algorithm"))


CONTRACT = [(case, c) for case, (a, _) in CASES.items() for c in (COMPRESSORS if compressed(a) else ("none",))]


@pytest.mark.parametrize(("case", "compressor"), CONTRACT)
def test_every_algorithm_with_every_compressor(case: str, compressor: str, classes: LeafSynthetic) -> None:
    """Runs, is finite, repeats itself to the bit, and follows its seed."""
    algorithm = replace(CASES[case][0], lr=1e-3)
    settings = {"topology": "star", "compressor": compressor, "batch_size": 2, "seed": 4, "steps": 4}
    one, again = (run(classes, algorithm, **settings) for _ in range(2))
    assert one.x.shape == (5, 27)
    assert bool(torch.isfinite(one.x).all())
    assert torch.equal(one.x, again.x)
    assert losses(one) == losses(again)
    assert torch.equal(one.x, one.x[:1].expand(5, -1)) == (agents_agree(algorithm) and compressor == "none")
    start = classes.start(4)
    assert not torch.equal(one.x, run(classes, algorithm, **(settings | {"seed": 5}), x0=start).x)


@pytest.mark.parametrize("case", ["docom", "choco-sgd", "lead"])
@pytest.mark.parametrize("compressor", [c for c in COMPRESSORS if not c.startswith("edge")])
def test_with_full_gradients_only_random_compressors_follow_the_seed(
    case: str, compressor: str, problem: LeastSquares
) -> None:
    one, other = (run(problem, CASES[case][0], compressor=compressor, seed=seed) for seed in (0, 1))
    assert torch.equal(one.x, other.x) == (compressor not in RANDOM)


def test_the_global_generator_is_left_alone(classes: LeafSynthetic) -> None:
    before = torch.get_rng_state()
    run(classes, docom.DoCoM(lr=1e-3), compressor="quantize:4", batch_size=2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_module_with_dropout_repeats_itself_given_the_seed() -> None:
    """Whatever else has drawn from torch's generator in between."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    data = [(torch.randn(9, 4), torch.arange(9) % 3) for _ in range(3)]
    problem = ModuleProblem(module, data)
    one = run(problem, docom.DoCoM(lr=0.1, gamma=0.5), batch_size=3)
    torch.rand(5)
    assert torch.equal(one.x, run(problem, docom.DoCoM(lr=0.1, gamma=0.5), batch_size=3).x)
    assert not torch.equal(one.x, run(problem, docom.DoCoM(lr=0.1, gamma=0.5), batch_size=3, seed=1).x)


@pytest.mark.parametrize("compressor", ["topk:0.05", "randk:0.05", "quantize:4", "topk:0.05,values=4"])
def test_runs_in_several_threads_give_the_numbers_of_runs_in_turn(compressor: str) -> None:
    draw = torch.Generator().manual_seed(0)
    A, b = torch.randn(4, 20, 2000, generator=draw), torch.randn(4, 20, generator=draw)

    def models(seed: int) -> Tensor:
        method = docom.DoCoM(lr=1e-4, gamma=0.05, beta=0.1)
        return docom.simulate(
            LeastSquares(A, b), method, compressor=compressor, steps=20, batch_size=5, eval_every=20, seed=seed
        ).x

    seeds = range(6)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(models, seeds))
    assert all(map(torch.equal, together, map(models, seeds)))


def test_modules_that_draw_do_so_for_themselves_in_several_threads() -> None:
    """Torch has one generator for the dropout masks of all modules in a process."""
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 40, generator=draw), torch.randint(3, (30,), generator=draw)) for _ in range(3)]
    module = nn.Sequential(nn.Linear(40, 60), nn.Dropout(0.5), nn.ReLU(), nn.Linear(60, 3))
    problem = ModuleProblem(module, data)

    def models(seed: int) -> Tensor:
        return docom.simulate(problem, docom.DSGD(lr=0.1), steps=20, batch_size=8, eval_every=20, seed=seed).x

    seeds = range(6)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(models, seeds))
    assert all(map(torch.equal, together, map(models, seeds)))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_one_and_two_agents(case: str, n: int) -> None:
    problem, algorithm = least_squares(n=n, m=M, d=D), CASES[case][0]
    for compressor in COMPRESSORS if compressed(algorithm) else ("none",):
        found = run(problem, algorithm, compressor=compressor, steps=3, eval_every=3)
        assert found.x.shape == (n, D)
        assert bool(torch.isfinite(found.x).all())
        if n == 1:
            assert found.records[-1]["bits"] == found.records[-1]["wire_bytes"] == 0, "there is nobody to send to"
            assert found.records[-1]["consensus_gap"] == 0
        else:
            assert found.records[-1]["wire_bytes"] > 0


# --- records ----------------------------------------------------------------------------------------------------------

COUNTS = {"step", "samples", "bits", "wire_bytes", "seconds"}
MEASURES = {"loss_worst", "loss_at_mean", "grad_norm_worst", "grad_norm_at_mean", "consensus_gap"}
ACCURACIES = {"train_accuracy_worst", "test_accuracy_worst"}


def test_keys_of_a_record(problem: LeastSquares, classes: LeafSynthetic) -> None:
    for record in run(problem).records:
        assert set(record) == COUNTS | MEASURES
    for record in run(classes, docom.DSGD(lr=1e-3)).records:
        assert set(record) == COUNTS | MEASURES | ACCURACIES


def test_records_say_what_the_models_are(problem: LeastSquares) -> None:
    """Each measure against its definition, of the global f, in NumPy."""
    found = run(problem, docom.DSGD(lr=0.01), steps=7, eval_every=7)
    A, b, x = problem.features.numpy(), problem.targets.numpy(), found.x.numpy()
    f = lambda z: 0.5 * np.mean((A @ z - b) ** 2)  # noqa: E731
    slope = lambda z: np.linalg.norm(A.T @ (A @ z - b) / len(b))  # noqa: E731
    mean, last = x.mean(axis=0), found.records[-1]
    assert last["loss_worst"] == pytest.approx(max(map(f, x)), rel=1e-12)
    assert last["loss_at_mean"] == pytest.approx(f(mean), rel=1e-12)
    assert last["grad_norm_worst"] == pytest.approx(max(map(slope, x)), rel=1e-12)
    assert last["grad_norm_at_mean"] == pytest.approx(slope(mean), rel=1e-12)
    assert last["consensus_gap"] == pytest.approx(sum(np.linalg.norm(x - mean, axis=1)), rel=1e-12)
    first = found.records[0]
    assert (first["consensus_gap"], first["loss_worst"]) == (0, pytest.approx(f(np.zeros(D)), rel=1e-12))


def test_accuracies_are_those_of_the_worst_agent_full_gradients(classes: LeafSynthetic) -> None:
    found = run(classes, docom.DSGD(lr=0.05), steps=20, eval_every=20)
    assert classes.test is not None
    scores = lambda X: np.einsum("mf,nkf->nmk", X.numpy(), found.x.reshape(5, 3, 9).numpy())  # noqa: E731
    right = lambda X, y: (scores(X).argmin(axis=2) == y.numpy()).mean(axis=1).min()  # noqa: E731
    assert found.records[-1]["train_accuracy_worst"] == pytest.approx(
        right(classes.features, classes.targets), rel=1e-12
    )
    assert found.records[-1]["test_accuracy_worst"] == pytest.approx(right(*classes.test), rel=1e-12)


@pytest.mark.parametrize(("steps", "every", "expected"), [
    (10, 4, [0, 4, 8, 10]), (10, 5, [0, 5, 10]), (10, 100, [0, 10]), (0, 3, [0]), (1, 1, [0, 1]),
    (3, None, [0, 1, 2, 3]), (45, None, [*range(0, 45, 2), 45]),
])  # fmt: skip
def test_records_are_made_at_zero_at_the_end_and_between(
    steps: int, every: int | None, expected: list[int], problem: LeastSquares
) -> None:
    assert [record["step"] for record in run(problem, steps=steps, eval_every=every).records] == expected


def test_how_often_one_looks_changes_nothing(problem: LeastSquares) -> None:
    often, rarely = (run(problem, compressor="quantize:4", batch_size=2, eval_every=every) for every in (1, 6))
    assert torch.equal(often.x, rarely.x)
    assert losses(often)[-1] == losses(rarely)[-1]
    assert losses(often)[0] == losses(rarely)[0]


def test_time_only_goes_forward(problem: LeastSquares) -> None:
    seconds = [record["seconds"] for record in run(problem, eval_every=1).records]
    assert all(0 <= before <= after for before, after in pairwise(seconds))
    assert seconds[-1] > 0


# --- counters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "points", "first"), [
    (docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2), 2, N * M),
    (docom.DoCoM(lr=0.01, gamma=0.3, beta=1.0), 1, N * M),
    (docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2, b0=4), 2, N * 4),
    (docom.DoCoM(lr=0.01, gamma=0.3, beta=0.2, b0="full"), 2, N * M),
    (docom.GTHSGD(lr=0.01), 2, N * M),
    (docom.AllReduceSTORM(lr=0.01), 2, N * M),
    (docom.DSGD(lr=0.01), 1, N * 3),
    (docom.DSGD(lr=0.01, b0="full"), 1, N * M),
    (docom.BEER(lr=0.01, gamma=0.3, b0=7), 1, N * 7),
    (docom.DeTAG(lr=0.01, rounds=3), 1, N * 3),
    (docom.MoTEF(lr=0.01, gamma=0.3), 1, N * 3),
])  # fmt: skip
def test_samples_by_hand(algorithm: docom.Algorithm, points: int, first: int, problem: LeastSquares) -> None:
    """The first batch, then b an agent and step, twice where two models are compared on it."""
    records = run(problem, algorithm, batch_size=3, steps=5, eval_every=2).records
    assert {r["step"]: r["samples"] for r in records} == {t: first + t * points * N * 3 for t in (0, 2, 4, 5)}


def test_samples_of_full_gradients_are_all_data(classes: LeafSynthetic) -> None:
    everything = int(classes.counts.sum())
    records = run(classes, docom.DoCoM(lr=1e-3, gamma=0.3, beta=0.1), steps=4, eval_every=4).records
    assert [record["samples"] for record in records] == [everything, everything * (1 + 2 * 4)]


def elias_fano_bytes(d: int, k: int) -> int:
    """k low parts of l bits, and k + (d >> l) + 1 bits of high parts, with l = log2(d/k) rounded down: at most that."""
    low = max(0, int(log2(d / k)))
    return ceil(k * low / 8) + ceil((k + (d >> low) + 1) / 8)


# d = 10 numbers of 8 bytes: bits by the paper's formula, and bytes of one message.
MESSAGES: dict[str, tuple[int, Callable[[int], int]]] = {
    "none": (32 * 10, lambda word: word * 10),
    "topk:0.3": (64 * 3, lambda word: len(encoded_topk(3, word))),
    "randk:0.3": (32 * 3, lambda word: word * 3),
    "quantize:4": (5 * 10 + 32, lambda word: word + ceil(5 * 10 / 8)),
    "quantize:2": (3 * 10 + 32, lambda word: word + ceil(3 * 10 / 8)),
    "sign": (10 + 32, lambda word: word + ceil(10 / 8)),
    "lowrank:1": (32 * 10, lambda word: word * 10),  # a vector is sent whole
}


def encoded_topk(k: int, word: int) -> bytes:
    dtype = {8: torch.float64, 4: torch.float32}[word]
    bound = docom.TopK(k=k).bind(Layout.flat(D), dtype)
    stamp = Stamp(Key(0, 0), torch.arange(1), 0)
    return bound.encode(bound.compress(torch.arange(1.0, 11.0, dtype=dtype).reshape(1, D), None, stamp, []))[0]


@pytest.mark.parametrize("compressor", MESSAGES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bits_and_bytes_by_hand(compressor: str, dtype: torch.dtype, problem: LeastSquares) -> None:
    """Bits are of one broadcast whatever the type; bytes are of every copy on every link, float64 values 8 of them."""
    bits, bytes_of = MESSAGES[compressor]
    graph = docom.network("erdos-renyi:0.5", N, seed=2)
    links = sum(len(near) for near in graph.neighbours)
    assert links == 2 * len(graph.edges)
    found = run(problem, GENTLE, compressor=compressor, topology="erdos-renyi:0.5", seed=2, dtype=dtype, eval_every=2)
    word = 8 if dtype == torch.float64 else 4
    for record in found.records:
        rounds = 2 * record["step"]  # a message of the model and one of the tracker
        assert record["bits"] == rounds * bits
        assert record["wire_bytes"] == rounds * links * bytes_of(word)


def test_top_k_indices_take_no_more_than_elias_fano(problem: LeastSquares) -> None:
    per_message = run(problem, GENTLE, compressor="topk:0.3", steps=1).records[-1]["wire_bytes"] / (2 * 2 * N)
    assert 3 * 8 + ceil(log2(comb(D, 3)) / 8) <= per_message <= 3 * 8 + elias_fano_bytes(D, 3)


ROUNDS: dict[str, tuple[docom.Algorithm, int, int]] = {
    "docom": (GENTLE, 2, 0),
    "dsgd": (docom.DSGD(lr=0.01), 1, 0),
    "gnsd": (docom.GNSD(lr=0.01), 2, 0),
    "detag": (docom.DeTAG(lr=0.01, rounds=3, acceleration=0.2), 6, 0),
    "gt-hsgd": (docom.GTHSGD(lr=0.01), 2, 0),
    "choco-sgd": (docom.ChocoSGD(lr=0.01, gamma=0.3), 1, 0),
    "beer": (docom.BEER(lr=0.01, gamma=0.3), 2, 0),
    "cedas": (docom.CEDAS(lr=0.01, gamma=0.3), 1, 1),
    "cedas-sends-first": (docom.CEDAS(lr=0.01, gamma=0.3, first_local_step=False), 1, 0),
    "lead": (docom.LEAD(lr=0.01, gamma=0.3), 1, 1),
    "cdproxsgt": (docom.CDProxSGT(lr=0.01, gamma=0.3), 2, 0),
    "motef": (docom.MoTEF(lr=0.01, gamma=0.3), 2, 0),
    "d2": (docom.D2(lr=0.01), 1, 0),
    "extra": (docom.EXTRA(lr=0.01), 1, 0),
    "qg-dsgdm": (docom.QGDSGDm(lr=0.01), 1, 0),
    "momentum-tracking": (docom.MomentumTracking(lr=0.01), 2, 0),
}
ROUNDS = with_all_methods(
    ROUNDS,
    lambda algorithm: (algorithm, int(algorithm.facts.messages[0]), 0),
    [name for name, kind in docom.ALGORITHMS.items() if "mean" not in kind.channels.values()],
)


@pytest.mark.parametrize("case", ROUNDS)
def test_vectors_sent_a_step(case: str, problem: LeastSquares) -> None:
    """Whole vectors on the ring: two neighbours each; LEAD and CEDAS send nothing in their local first step."""
    algorithm, vectors, silent = ROUNDS[case]
    for record in run(problem, algorithm, eval_every=1).records:
        sent = vectors * max(0, record["step"] - silent)
        different = 2 if "pairs" in algorithm.channels.values() else 1  # another message to each of the two neighbours
        weights = record["step"] * ("weight" in algorithm.channels)  # one number of push-sum
        assert record["bits"] == sent * different * 32 * D + 32 * weights
        assert record["wire_bytes"] == 2 * N * 8 * (sent * D + weights)


@pytest.mark.parametrize("algorithm", [docom.AllReduceSGD(lr=0.01), docom.AllReduceSTORM(lr=0.01)])
def test_an_all_reduce_is_priced_as_a_ring_does_it(algorithm: docom.Algorithm, problem: LeastSquares) -> None:
    for record in run(problem, algorithm, eval_every=2).records:
        assert record["bits"] == pytest.approx(record["step"] * 2 * (N - 1) / N * 32 * D, rel=1e-12)
        assert record["wire_bytes"] == record["step"] * 2 * (N - 1) * 8 * D


def test_every_sender_is_counted() -> None:
    averaging = {name for name, kind in docom.ALGORITHMS.items() if "mean" in kind.channels.values()}
    assert {case for case in ROUNDS if case in docom.ALGORITHMS} | averaging == set(docom.ALGORITHMS)


def test_bytes_of_edge_low_rank_by_hand(classes: LeafSynthetic) -> None:
    """r (a + b) numbers an end and round for the 3 x 9 matrix."""
    for rounds in (1, 2):
        records = run(classes, GENTLE, compressor=f"edge-lowrank:1,rounds={rounds}", topology="star", steps=3).records
        numbers = 2 * 3 * rounds * (3 + 9)
        assert records[-1]["wire_bytes"] == numbers * 8 * (2 * 4)
        assert records[-1]["bits"] == pytest.approx(numbers * 32 * (2 * 4) / 5)


@pytest.mark.parametrize(
    ("case", "compressor"),
    [(case, c) for case in ("docom", "lead") for c in COMPRESSORS] + [("detag-rounds", "none")],
)
def test_counters_are_the_lengths_of_the_very_messages(case: str, compressor: str, classes: LeafSynthetic) -> None:
    """Every message of a run through its bytes and back: the same numbers, and the bytes that were counted."""
    algorithm = replace(CASES[case][0], lr=1e-3)
    direct, through = (
        through_bytes(begin(classes, algorithm, compressor=compressor, batch=2), yes) for yes in (False, True)
    )
    for _ in range(5):
        direct.take_step()
        through.take_step()
    assert torch.equal(direct.state.x, through.state.x)
    transport = through.channels["model"].transport
    assert isinstance(transport, InProcess)
    assert transport.bytes_sent == through.channels.wire_bytes == direct.channels.wire_bytes > 0


def through_bytes(training: Training, yes: bool) -> Training:
    transport = training.channels["model"].transport
    assert isinstance(transport, InProcess)
    transport.through_bytes = yes
    return training


def test_two_compressors_are_counted_apart(problem: LeastSquares) -> None:
    algorithm = docom.DoCoM(lr=0.01, gamma=0.3, gamma_g=0.2, beta=0.2, compressor_g="quantize:4")
    records = run(problem, algorithm, compressor="topk:0.3").records
    one, other = MESSAGES["topk:0.3"], MESSAGES["quantize:4"]
    assert records[-1]["bits"] == 6 * (one[0] + other[0])
    assert records[-1]["wire_bytes"] == 6 * 2 * N * (one[1](8) + other[1](8))


# --- settings that change the run -------------------------------------------------------------------------------------


def test_second_message_has_its_own_settings(problem: LeastSquares) -> None:
    plain = run(problem, GENTLE, compressor="topk:0.3").x
    same = replace(GENTLE, gamma_g=0.3, compressor_g=docom.TopK(fraction=0.3))
    assert torch.equal(run(problem, same, compressor="topk:0.3").x, plain)
    for other in (
        replace(GENTLE, gamma_g=0.1),
        replace(GENTLE, compressor_g="sign"),
        replace(GENTLE, compressor_g="none"),
    ):
        assert not torch.allclose(run(problem, other, compressor="topk:0.3").x, plain, rtol=1e-6, atol=0)


def test_compressors_are_names_or_objects(problem: LeastSquares) -> None:
    for name, made in [
        ("topk:0.3", docom.TopK(fraction=0.3)), ("randk:0.3", docom.RandK(fraction=0.3)),
        ("quantize:4", docom.Quantizer(bits=4)), ("sign", docom.Sign()), ("lowrank:2", docom.LowRank(rank=2)),
        ("none", docom.Identity()), ("none", None),
    ]:  # fmt: skip
        assert torch.equal(run(problem, compressor=name).x, run(problem, compressor=made).x)
    scaled = replace(GENTLE, gamma=1.0)
    for name, made in [("edge-lowrank:1", docom.EdgeLowRank(rank=1)), ("topk:0.3", PublicCopies(docom.TopK(0.3)))]:
        assert torch.equal(run(problem, scaled, compressor=name).x, run(problem, scaled, compressor=made).x)


def test_topologies_are_names_graphs_or_matrices(problem: LeastSquares) -> None:
    ring = run(problem).x
    matrix = docom.network("ring", N).matrix
    assert np.allclose(matrix, sum(np.roll(np.eye(N), shift, axis=0) for shift in (-1, 0, 1)) / 3, atol=1e-15)
    for same in (
        nx.cycle_graph(N),
        matrix,
        torch.from_numpy(matrix.copy()),
        matrix.tolist(),
        docom.network("ring", N),
    ):
        assert torch.equal(run(problem, topology=same).x, ring)
    lazy = run(problem, topology=(np.eye(N) + matrix) / 2).x
    assert torch.equal(run(problem, weights="lazy").x, lazy)
    assert torch.equal(run(problem, weights=matrix).x, ring)
    for other in ("path", "star", "complete", "torus:2x3", "erdos-renyi:0.6"):
        assert not torch.allclose(run(problem, topology=other).x, ring, rtol=1e-6, atol=0)
    assert not torch.equal(lazy, ring)


def test_start_is_common_and_given_or_the_problems(problem: LeastSquares, classes: LeafSynthetic) -> None:
    assert torch.equal(run(problem, steps=0).x, torch.zeros(N, D, dtype=torch.float64))
    x0 = torch.linspace(-1, 1, D, dtype=torch.float64)
    kept = x0.clone()
    assert torch.equal(run(problem, steps=0, x0=x0).x, x0.expand(N, D))
    run(problem, x0=x0)
    assert torch.equal(x0, kept), "the caller's start is not written to"
    assert torch.equal(run(classes, steps=0, seed=3).x, classes.start(3).expand(5, -1))
    assert not torch.equal(classes.start(3), classes.start(4))
    assert float(classes.start(3).abs().max()) <= 1 / 3, "uniform in +-1/sqrt(9)"


def test_module_starts_from_its_parameters() -> None:
    module = torch.nn.Linear(3, 2)
    problem = ModuleProblem(module, [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))] * 2)
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.equal(run(problem, steps=0, dtype=torch.float32).x, expected.expand(2, -1))


def test_type_of_the_run(problem: LeastSquares) -> None:
    single, double = run(problem, dtype=torch.float32, steps=20), run(problem, dtype=torch.float64, steps=20)
    assert (single.x.dtype, double.x.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(single.x.double(), double.x, atol=1e-5)
    assert not torch.equal(single.x.double(), double.x)


@pytest.mark.filterwarnings("ignore:batch_size=4 is more than any agent has")
def test_a_batch_of_the_only_sample_is_the_full_gradient() -> None:
    """With one sample an agent, any batch drawn with replacement has the full gradient."""
    problem = least_squares(n=N, m=1, d=D)
    full, drawn = run(problem, steps=30), run(problem, steps=30, batch_size=4)
    assert torch.allclose(full.x, drawn.x, rtol=1e-11, atol=1e-13)
    several = least_squares(n=N, m=M, d=D)
    assert not torch.allclose(run(several).x, run(several, batch_size=M).x, rtol=1e-3), "with more samples it is not"


@pytest.mark.parametrize("b0", [1, 4, "full"])
def test_first_batch(b0: int | str, problem: LeastSquares) -> None:
    """After one step without gossip, x1 = x0 - lr v0 says what v0 was: the mean over the samples that were drawn."""
    algorithm = docom.DoCoM(lr=1.0, gamma=1e-300, beta=0.1, b0=b0)
    x1 = run(problem, algorithm, steps=1, batch_size=2, seed=9).x
    A, b = problem.features.reshape(N, M, D), problem.targets.reshape(N, M)
    for agent in range(N):
        rows = torch.arange(M)
        if b0 != "full":
            rows = batch_indices(Key(9, BATCH), torch.tensor([agent]), 0, torch.tensor([M]), int(b0))[0]
        gradient = A[agent, rows].T @ -b[agent, rows] / len(rows)
        assert torch.allclose(x1[agent], -gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ["docom", "docom-beta1", "gnsd", "lead", "allreduce-storm"])
@pytest.mark.parametrize("batch", [None, 2])
def test_exact_mode_gives_the_same_numbers(case: str, batch: int | None, classes: LeafSynthetic) -> None:
    """Gradients one agent at a time or all at once: they differ in the last bits at most."""
    algorithm = replace(CASES[case][0], lr=1e-2)
    compressor = "topk:0.3" if compressed(algorithm) else "none"
    features = [(torch.randn(m, 4, generator=torch.Generator().manual_seed(m)), torch.arange(m) % 3) for m in (3, 5, 9)]
    for problem in (
        classes,
        least_squares(n=N, m=M, d=D),
        LogisticRegression([(x.double(), (y > 0).long()) for x, y in features]),
        ModuleProblem(torch.nn.Linear(4, 3).double(), features, weight_decay=1e-2),
    ):
        fast, exact = (
            run(problem, algorithm, compressor=compressor, batch_size=batch, exact=e, steps=12) for e in (False, True)
        )
        scale = max(1.0, float(fast.x.abs().max()))
        assert float((fast.x - exact.x).abs().max()) <= 1e-12 * scale
        assert [r["samples"] for r in fast.records] == [r["samples"] for r in exact.records]


def test_exact_mode_does_not_depend_on_which_agents_share_a_call(classes: LeafSynthetic) -> None:
    x = classes.start(0).expand(5, -1).contiguous()
    alone = torch.cat([classes.gradients([x[:1]], None, torch.tensor([agent]))[0] for agent in range(5)])
    training = begin(classes, docom.DSGD(lr=0.1), batch=None)
    training.oracle.exact = True
    assert torch.equal(training.oracle.gradients((x,), 0)[0], alone)


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_until_stops_at_the_first_record_that_is_there(problem: LeastSquares) -> None:
    whole = run(problem, steps=40, eval_every=4)
    target = whole.records[5]["loss_worst"]
    assert all(record["loss_worst"] > target for record in whole.records[:5])
    early = run(problem, steps=40, eval_every=4, until=f"loss_worst<={target!r}")
    assert losses(early) == losses(whole)[:6]
    assert early.records[-1]["step"] == 20
    assert torch.equal(early.x, run(problem, steps=20).x)
    assert run(problem, until="samples >= 1").records[-1]["step"] == 0
    assert run(problem, steps=8, eval_every=1, until="step > 3").records[-1]["step"] == 4
    assert run(problem, steps=8, eval_every=1, until="loss_worst<-1e0").records[-1]["step"] == 8


def test_callback_sees_every_record_and_may_stop(problem: LeastSquares) -> None:
    seen: list[Record] = []
    whole = run(problem, steps=12, eval_every=3, callback=seen.append)
    assert seen == whole.records
    stopped = run(problem, steps=12, eval_every=3, callback=lambda record: record["step"] >= 6)
    assert [record["step"] for record in stopped.records] == [0, 3, 6]
    assert torch.equal(stopped.x, run(problem, steps=6).x)


def test_progress_is_told_of_steps_and_records(problem: LeastSquares, capsys: pytest.CaptureFixture[str]) -> None:
    class Diary:
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.records: list[Record] = []

        def step(self, done: int) -> None:
            self.steps.append(done)

        def record(self, record: Record) -> None:
            self.records.append(record)

    diary = Diary()
    found = run(problem, steps=5, eval_every=2, progress=diary)
    assert diary.steps == [1, 2, 3, 4, 5]
    assert diary.records == found.records
    run(problem, steps=5, eval_every=5, progress=True)
    printed = capsys.readouterr().err
    assert "docom" in printed
    assert "5 of 5" in printed


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_uniform_output_is_a_uniformly_drawn_iterate() -> None:
    """One of x^0 .. x^{T-1}, each as often as the others: 400 seeds, four standard deviations."""
    problem = least_squares(n=2, m=2, d=2)
    last = docom.DSGD(lr=0.05)
    iterates = [run(problem, last, steps=steps, eval_every=steps or 1).x for steps in range(6)]
    found: Counter[int] = Counter()
    for seed in range(400):
        x = run(problem, replace(last, output="uniform"), steps=5, eval_every=5, seed=seed).x
        (step,) = (t for t, iterate in enumerate(iterates) if torch.equal(x, iterate))
        found[step] += 1
    assert set(found) == {0, 1, 2, 3, 4}
    assert max(abs(count - 80) for count in found.values()) <= 4 * (400 * 0.2 * 0.8) ** 0.5


def test_uniform_output_does_not_change_the_run(problem: LeastSquares) -> None:
    last, drawn = (run(problem, replace(GENTLE, output=o), batch_size=2, steps=9, seed=1) for o in ("last", "uniform"))
    assert losses(last) == losses(drawn)
    assert not torch.equal(last.x, drawn.x)
    assert torch.equal(
        run(problem, replace(GENTLE, output="uniform"), steps=0).x, torch.zeros(N, D, dtype=torch.float64)
    )


def test_prox_output_is_what_is_evaluated_and_returned(problem: LeastSquares) -> None:
    found = run(problem, docom.CDProxSGT(lr=0.05, gamma=0.3, prox=docom.L1(5.0)), compressor="topk:0.3", steps=9)
    assert bool((found.x == 0).any())
    A, b, x = problem.features, problem.targets, found.x
    worst = max(float(((A @ row - b) ** 2).mean() / 2) for row in x)
    assert found.records[-1]["loss_worst"] == pytest.approx(worst, rel=1e-12)


def test_frame_and_figure(problem: LeastSquares, classes: LeafSynthetic) -> None:
    found = run(problem, steps=6, eval_every=2)
    frame = found.to_frame()
    assert list(frame.columns) == list(found.records[0])
    assert frame.to_dict("records") == found.records
    from matplotlib.figure import Figure

    figure = found.plot()
    assert isinstance(figure, Figure)
    assert [axes.get_title() for axes in figure.axes] == ["Worst loss", "Consensus gap", "Worst gradient norm"]
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[r["step"], r["loss_worst"]] for r in found.records]
    (panel,) = found.plot("bits", ["loss_at_mean"]).axes
    assert panel.get_xlabel() == "bits per agent (bit)"
    assert panel.lines[0].get_xdata().tolist() == [r["bits"] for r in found.records]
    assert len(run(classes, docom.DSGD(lr=1e-3)).plot().axes) == 4
    with pytest.raises(ValueError, match="records"):
        found.plot(measures=["nothing"])
    with pytest.raises(ValueError, match="unknown axis 'byts'; did you mean 'bytes'"):
        found.plot("byts")


def test_runs_are_plotted_together(problem: LeastSquares) -> None:
    runs = [run(problem, docom.DSGD(lr=1e-3), steps=6, eval_every=2) for _ in range(2)]
    figure = docom.plot([*runs, run(problem, steps=6, eval_every=2)], against="bytes")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["dsgd 1", "dsgd 2", "docom"]
    first = figure.axes[0]
    assert first.get_xlabel() == "bytes per agent (B)"
    per_agent = [record["wire_bytes"] / problem.agents for record in runs[0].records]
    assert first.lines[0].get_xdata().tolist() == pytest.approx(per_agent)
    named = docom.plot({"mine": runs[0], "yours": runs[1]})
    assert [text.get_text() for text in named.legends[0].get_texts()] == ["mine", "yours"]
    with pytest.raises(ValueError, match="no run to plot"):
        docom.plot([])


def test_mean_model(problem: LeastSquares) -> None:
    found = run(problem)
    assert torch.equal(found.mean_model(), found.x.mean(dim=0))
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    inputs = torch.randn(8, 3)
    trained = run(
        ModuleProblem(module, [(inputs, torch.arange(8) % 2)] * 2),
        docom.DSGD(lr=0.1),
        batch_size=2,
        dtype=torch.float32,
    )
    model = trained.mean_model()
    assert isinstance(model, torch.nn.Sequential)
    assert model is not module
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(flat, trained.x.mean(dim=0))
    assert model(inputs).shape == (8, 2)


def test_description_tells_the_settings_as_used(problem: LeastSquares) -> None:
    """gamma="auto" is replaced by the step that was measured, and the run is the one with that step."""
    found = run(problem, docom.DoCoM(lr=0.01), compressor="topk:0.3")
    gamma = found.description["gamma"]["gamma"]
    assert 0 < gamma <= 1
    assert found.description["algorithm"] == docom.DoCoM(lr=0.01, gamma=gamma)
    assert torch.equal(found.x, run(problem, docom.DoCoM(lr=0.01, gamma=gamma), compressor="topk:0.3").x)
    assert found.description["network"] == docom.network("ring", N)
    assert found.description["compressor"]["model"] == docom.TopK(fraction=0.3)
    two = run(problem, docom.DoCoM(lr=0.01, compressor_g="sign"), compressor="quantize:8").description["gamma"]
    assert set(two) == {"gamma", "gamma_g"}
    assert two["gamma"] != two["gamma_g"]


# --- refusals ---------------------------------------------------------------------------------------------------------


def never(record: Record) -> None:
    pytest.fail("the run had started")


@pytest.mark.parametrize(("make", "message"), [
    (lambda: docom.DoCoM(lr=0), "lr.*0"),
    (lambda: docom.DoCoM(lr=-0.1), "lr.*-0.1"),
    (lambda: docom.DSGD(lr=float("nan")), "lr.*nan"),
    (lambda: docom.DSGD(lr=float("inf")), "lr.*inf"),
    (lambda: docom.DSGD(lr="fast"), "schedule.*fast"),
    (lambda: docom.DSGD(lr="inverse-sqr:0.1"), "inverse-sqrt"),
    (lambda: docom.DSGD(lr=None), "lr"),
    (lambda: docom.DoCoM(lr=True), "step size.*True"),
    (lambda: docom.DoCoM(lr=0.1, gamma=0), "gamma.*0"),
    (lambda: docom.DoCoM(lr=0.1, gamma=1.5), r"gamma.*\(0, 1\].*1.5"),
    (lambda: docom.DoCoM(lr=0.1, gamma=None), "gamma"),
    (lambda: docom.DoCoM(lr=0.1, gamma_g=2.0), r"gamma_g.*\(0, 1\].*2"),
    (lambda: docom.DoCoM(lr=0.1, beta=0.0), r"beta.*\(0, 1\].*0"),
    (lambda: docom.DoCoM(lr=0.1, beta=1.1), r"beta.*\(0, 1\].*1.1"),
    (lambda: docom.DoCoM(lr=0.1, beta=None), "beta"),
    (lambda: docom.DoCoM(lr=0.1, beta="auto"), "auto"),
    (lambda: docom.GTHSGD(lr=0.1, beta=-1.0), "beta.*-1"),
    (lambda: docom.MoTEF(lr=0.1, beta=0), "beta"),
    (lambda: docom.LEAD(lr=0.1, alpha=0), "alpha"),
    (lambda: docom.LEAD(lr=0.1, alpha=1.2), "alpha.*1.2"),
    (lambda: docom.QGDSGDm(lr=0.1, momentum=1.0), "momentum.*1"),
    (lambda: docom.MomentumTracking(lr=0.1, momentum=-0.1), "momentum.*-0.1"),
    (lambda: docom.AllReduceSGD(lr=0.1, momentum=1.0), "momentum.*1"),
    (lambda: docom.DoCoM(lr=0.1, heavy_ball=1.0), "heavy_ball.*1"),
    (lambda: docom.DoCoM(lr=0.1, order="atc"), "alg1.*stale.*atc"),
    (lambda: docom.DSGD(lr=0.1, order="cta"), "awc.*atc.*cta"),
    (lambda: docom.GNSD(lr=0.1, order="cta"), "awc.*atc.*cta"),
    (lambda: docom.ChocoSGD(lr=0.1, order="nips"), "icml.*iclr.*nips"),
    (lambda: docom.ChocoSGD(lr=0.1, hat0="one"), "x0.*zero.*one"),
    (lambda: docom.CDProxSGT(lr=0.1, hat0="one"), "x0.*zero.*one"),
    (lambda: docom.CDProxSGT(lr=0.1, prox=3), "prox.*3"),
    (lambda: docom.L1(-1.0), "weight.*-1"),
    (lambda: docom.DeTAG(lr=0.1, rounds=0), "rounds.*0"),
    (lambda: docom.DeTAG(lr=0.1, rounds=1.5), "rounds.*1.5"),
    (lambda: docom.DoCoM(lr=0.1, b0=True), "b0.*True"),
    (lambda: docom.DeTAG(lr=0.1, acceleration=1.0), "acceleration.*1"),
    (lambda: docom.DeTAG(lr=0.1, tracker_in_step="new"), "mixed.*updated.*old.*new"),
    (lambda: docom.D2(lr=0.1, mixing="v"), "lazy.*w.*v"),
    (lambda: docom.DoCoM(lr=0.1, b0=0), "b0.*0"),
    (lambda: docom.DoCoM(lr=0.1, b0="all"), "b0.*full.*all"),
    (lambda: docom.DoCoM(lr=0.1, output="mean"), "last.*uniform.*mean"),
])  # fmt: skip
def test_algorithms_refuse_what_cannot_be_run(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


NAN = torch.tensor([0.0] * (D - 1) + [float("nan")])


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"steps": -1}, ValueError, "steps.*-1"),
    ({"steps": 1.5}, ValueError, "steps.*1.5"),
    ({"steps": True}, ValueError, "steps.*True"),
    ({"batch_size": True}, ValueError, "batch_size.*True"),
    ({"eval_every": True}, ValueError, "eval_every.*True"),
    ({"seed": True}, (ValueError, TypeError), "seed.*True"),
    ({"batch_size": 0}, ValueError, "batch_size.*None.*0"),
    ({"batch_size": 2.5}, ValueError, "batch_size.*2.5"),
    ({"eval_every": 0}, ValueError, "eval_every.*0"),
    ({"dtype": torch.bfloat16}, ValueError, "float32.*float64.*bfloat16"),
    ({"dtype": torch.float16}, ValueError, "float32.*float64.*float16"),
    ({"dtype": torch.int64}, ValueError, "float32.*float64.*int64"),
    ({"device": "gpu"}, ValueError, "gpu"),
    ({"seed": -1}, ValueError, "seed.*-1"),
    ({"seed": 0.5}, (ValueError, TypeError), "seed.*0.5"),
    ({"x0": torch.zeros(D + 1)}, ValueError, r"x0.*\[10\].*\[11\]"),
    ({"x0": torch.zeros(N, D)}, ValueError, r"x0.*\[10\].*\[6, 10\]"),
    ({"x0": NAN}, FloatingPointError, "x0.*NaN"),
    ({"until": "loss_worst"}, ValueError, "loss_worst<=0.05"),
    ({"until": "loss_wurst<=1"}, ValueError, "loss_worst"),
    ({"until": "loss_worst=1"}, ValueError, "loss_worst<=0.05"),
    ({"until": "loss_worst<=1e"}, ValueError, "1e"),
    ({"topology": "rign"}, ValueError, "did you mean 'ring'"),
    ({"topology": "erdos-renyi:1.5"}, ValueError, "1.5"),
    ({"topology": 7}, (TypeError, ValueError), "7|topology|matrix"),
    ({"topology": nx.empty_graph(N)}, ValueError, "not connected"),
    ({"topology": nx.path_graph(N + 1)}, ValueError, "7.*6"),
    ({"topology": np.eye(N)}, ValueError, "not connected"),
    ({"topology": np.full((N, N), 1 / N) + np.diag([1e-3] * N)}, ValueError, "sum"),
    ({"topology": np.roll(np.eye(N), 1, axis=0) * 0.5 + np.eye(N) * 0.5}, ValueError, "symmetric"),
    ({"weights": "metropolitan"}, ValueError, "did you mean 'metropolis'"),
    ({"compressor": "topkk:0.1"}, ValueError, "did you mean 'topk'"),
    ({"compressor": "topk:0"}, ValueError, "fraction"),
    ({"compressor": "topk:0.1,keep=3"}, ValueError, "topk takes"),
    ({"compressor": "quantize:40"}, ValueError, "bits.*40"),
    ({"compressor": docom.TopK(k=D + 1)}, ValueError, "1 <= k <= d, got k=11 for d=10"),
    ({"compressor": 0.1}, TypeError, "0.1"),
    ({"algorithm": docom.DSGD(lr=0.1), "compressor": "topk:0.1"}, ValueError, "dsgd.*uncompressed"),
    ({"algorithm": docom.AllReduceSGD(lr=0.1), "compressor": "sign"}, ValueError,
     "allreduce-sgd sends averages.*sign is for compressed.*none.*mean-lowrank.*docom"),
    ({"algorithm": docom.DoCoM(lr=0.1, compressor_g="tipk:1")}, ValueError, "did you mean 'topk'"),
    ({"algorithm": docom.D2(lr=0.1, mixing="w")}, ValueError, 'lambda_min.*mixing="lazy"'),
    ({"algorithm": docom.DoCoM}, TypeError, r"docom.DoCoM\(lr=0.05\)"),
    ({"algorithm": "docom"}, TypeError, r"docom.DoCoM\(lr=0.05\)"),
    ({"problem": [1, 2]}, TypeError, "problem"),
])  # fmt: skip
def test_runs_that_cannot_be_are_refused_before_they_start(
    settings: dict[str, Any], error: type[Exception], message: str, problem: LeastSquares
) -> None:
    """With a message that says what was given and what would do; never a step, a record or a callback."""
    given = {"problem": problem, "algorithm": GENTLE, "callback": never} | settings
    with pytest.raises(error, match=message):
        run(given.pop("problem"), given.pop("algorithm"), **given)


def test_a_device_that_is_not_there_is_refused(problem: LeastSquares) -> None:
    """Whether torch was built without CUDA or the machine has fewer cards."""
    with pytest.raises(ValueError, match="cuda:99"):
        run(problem, device="cuda:99", callback=never)


def test_measures_that_the_problem_lacks_are_refused(problem: LeastSquares) -> None:
    with pytest.raises(ValueError, match=r"test_accuracy_worst.*loss_worst"):
        run(problem, until="test_accuracy_worst>=0.9")


def test_an_unknown_algorithm_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'choco-sgd'"):
        docom.algorithms.find("choco-sdg")
    assert docom.algorithms.find("docom") is docom.DoCoM


def test_a_taken_name_cannot_be_registered() -> None:
    impostor = type("Other", (docom.DSGD,), {"name": "docom"})
    with pytest.raises(ValueError, match="'docom' is taken by DoCoM"):
        docom.register(impostor)
    assert docom.ALGORITHMS["docom"] is docom.DoCoM


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_data_with_nan_are_refused(bad: float) -> None:
    A, b = torch.ones(2, 3, 4), torch.ones(2, 3)
    spoilt_A, spoilt_b = A.clone(), b.clone()
    spoilt_A[1, 2, 3] = spoilt_b[1, 2] = bad
    inputs, classes = torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)
    linear, mse = torch.nn.Linear(4, 1), torch.nn.functional.mse_loss
    for make in (
        lambda: LeastSquares(spoilt_A, b),
        lambda: LeastSquares(A, spoilt_b),
        lambda: LogisticRegression([(spoilt_A[1], torch.tensor([1, -1, 1]))]),
        lambda: ModuleProblem(torch.nn.Linear(4, 2), [(inputs, classes), (spoilt_A[1], classes)]),
        lambda: ModuleProblem(linear, [(inputs, b[0].unsqueeze(1)), (inputs, spoilt_b[1].unsqueeze(1))], loss=mse),
    ):
        with pytest.raises(FloatingPointError, match="NaN"):
            make()


class Vast(LeastSquares):
    """Least squares that claims ten trillion unknowns; its start would take 80 TB."""

    def __init__(self) -> None:
        super().__init__(torch.ones(3, 2, 4), torch.ones(3, 2))
        self.layout = Layout.flat(10**13)

    def start(self, seed: int) -> Tensor:
        raise AssertionError("allocated before the estimate was checked")


@pytest.mark.parametrize("algorithm", [docom.DoCoM(lr=0.1, gamma=0.3), docom.DoCoM(lr=0.1), docom.DSGD(lr=0.1)])
def test_a_run_that_cannot_fit_is_refused_before_anything_is_allocated(algorithm: docom.Algorithm) -> None:
    with pytest.raises(ValueError, match=r"3 agents.*10,000,000,000,000.*needs about.*GiB"):
        run(Vast(), algorithm, callback=never)


# --- running away -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_divergence_is_an_error_that_names_agent_variable_and_step(case: str, problem: LeastSquares) -> None:
    algorithm = replace(CASES[case][0], lr=1e9)
    with pytest.raises(
        FloatingPointError,
        match=rf"agents? \d.*step \d+: NaN or infinity in the [\w-]+; {algorithm.name} has diverged",
    ):
        run(problem, algorithm, steps=2000, eval_every=2000)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_divergence_is_seen_through_every_compressor(compressor: str, problem: LeastSquares) -> None:
    with pytest.raises(FloatingPointError, match=r"agents? \d.*step \d+"):
        run(problem, replace(GENTLE, lr=1e9), compressor=compressor, steps=2000, eval_every=2000)


def test_divergence_names_the_agent_it_began_with() -> None:
    """Only agent 2's gradient overflows; its model is found out when it is next sent, before others have it."""
    A, b = torch.ones(N, 1, 2, dtype=torch.float64), torch.ones(N, 1, dtype=torch.float64)
    A[2] *= 1e200
    for algorithm in (docom.DSGD(lr=0.1), docom.ChocoSGD(lr=0.1, gamma=0.5)):
        with pytest.raises(FloatingPointError, match=r"^agent 2, step [12]: NaN or infinity in the model"):
            run(LeastSquares(A, b), algorithm, steps=5, eval_every=5)


def test_parse_is_what_the_simulator_uses(problem: LeastSquares) -> None:
    assert run(problem, compressor="quantize:4,unbiased=true").description["compressor"]["model"] == parse(
        "quantize:4,unbiased=true"
    )


# --- what users give -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"until": 5}, 'until must read like "loss_worst<=0.05"'),
        ({"dtype": "float46"}, "dtype is torch.float32 or torch.float64"),
        ({"x0": "zeros"}, "x0 must be numbers in equally long rows, got str"),
        ({"x0": torch.zeros(10, dtype=torch.complex64)}, "x0 must be real numbers, got complex ones"),
        ({"eval_every": True}, "eval_every is an integer >= 1, got True"),
        ({"steps": True}, "steps is an integer >= 0, got True"),
        ({"diagnose": "yes"}, "diagnose is True or False, got 'yes'"),
        ({"exact": "yes"}, "exact is True or False, got 'yes'"),
        ({"callback": 3}, "callback is a function of a record, got 3"),
        ({"progress": "yes"}, "progress is True, False or an object"),
        ({"device": "gpu"}, "unknown device 'gpu'; did you mean 'cuda'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_plain_words(
    given: dict[str, Any], message: str, problem: LeastSquares
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        docom.simulate(problem, docom.DSGD(lr=0.01), **{"steps": 2} | given)


def test_types_and_starts_may_be_given_as_users_have_them(problem: LeastSquares) -> None:
    def models(**given: Any) -> Tensor:
        return docom.simulate(problem, docom.DSGD(lr=0.01), steps=3, **given).x

    start = np.linspace(0, 1, problem.dimension)
    usual = models(dtype=torch.float64, x0=torch.from_numpy(start))
    for dtype in ("float64", np.float64, "torch.float64"):
        assert torch.equal(models(dtype=dtype, x0=start), usual)
    assert torch.equal(models(dtype="float64", x0=start.tolist()), usual)


def test_a_batch_larger_than_all_data_sets_is_noted() -> None:
    data = LogisticRegression([(torch.ones(m, 2), torch.tensor([1.0, -1.0]).repeat(m // 2)) for m in (4, 2, 6)])
    with pytest.warns(
        UserWarning, match=r"batch_size=7 is more than any agent has \(2 samples at agent 1, 6 at most\)"
    ):
        docom.simulate(data, docom.DSGD(lr=0.01), steps=2, batch_size=7)
    docom.simulate(data, docom.DSGD(lr=0.01), steps=2, batch_size=6)
