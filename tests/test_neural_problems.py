from __future__ import annotations

from math import prod, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from docom.algorithms import DoCoM
from docom.layout import Layout
from docom.problems import MLP, LeNet5, ModuleProblem, NeuralProblem
from docom.problems.base import subset
from docom.problems.convolution import pool, unpool
from docom.problems.mlp import Lean
from docom.simulator import simulate

COUNTS = (4, 9, 6)
KINDS = ["mlp", "lenet"]


def _lenet(classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ZeroPad2d(2),
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def _samples(shape: tuple[int, ...], classes: int, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, *shape, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(classes, (count,), generator=draw)


def _pair(kind: str, counts: tuple[int, ...] = COUNTS, **settings: Any) -> tuple[NeuralProblem, ModuleProblem]:
    """One problem in both ways: written out by hand, and by autograd through a module stated here."""
    draw = torch.Generator().manual_seed(3)
    shape, classes = ((13,), 5) if kind == "mlp" else ((1, 28, 28), 10)
    data = [_samples(shape, classes, count, draw) for count in counts]
    test = _samples(shape, classes, 11, draw)
    if kind == "mlp":
        module = nn.Sequential(nn.Linear(13, 7), nn.Sigmoid(), nn.Linear(7, classes)).double()
        by_hand: NeuralProblem = MLP(data, hidden=7, classes=classes, weight_decay=0.03, test=test, **settings)
    else:
        module = _lenet(classes).double()
        by_hand = LeNet5(data, classes=classes, weight_decay=0.03, test=test, **settings)
    return by_hand, ModuleProblem(module, data, weight_decay=0.03, test=test)


def _points(problem: NeuralProblem, rows: int, count: int = 1) -> list[Tensor]:
    draw = torch.Generator().manual_seed(5)
    start = problem.start(0)
    return [
        start + 0.1 * torch.randn(rows, problem.dimension, generator=draw, dtype=torch.float64) * start.abs()
        for _ in range(count)
    ]


def _close(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("agents", [[0, 1, 2], [2, 0], [1]])
@pytest.mark.parametrize("batch", [1, 5, None])
def test_gradients_are_those_of_autograd(kind: str, agents: list[int], batch: int | None) -> None:
    by_hand, by_autograd = _pair(kind)
    points, chosen = _points(by_hand, len(agents), 2), torch.tensor(agents)
    samples = None
    if batch is not None:
        samples = torch.stack([torch.arange(batch) * 3 % COUNTS[agent] for agent in agents])
    found = by_hand.gradients(points, samples, chosen)
    for mine, theirs in zip(found, by_autograd.gradients(points, samples, chosen), strict=True):
        _close(mine, theirs)
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_equal_counts_full_gradients(kind: str) -> None:
    by_hand, by_autograd = _pair(kind, (6, 6, 6))
    (point,) = _points(by_hand, 3)
    everything = torch.arange(6).expand(3, -1)
    (found,) = by_hand.gradients([point], None, torch.arange(3))
    _close(found, by_autograd.gradients([point], None, torch.arange(3))[0])
    _close(found, by_hand.gradients([point], everything, torch.arange(3))[0], 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_slopes_of_the_loss(kind: str) -> None:
    problem, _ = _pair(kind)
    (point,) = _points(problem, 1)
    (gradient,) = problem.gradients([point], None, torch.tensor([1]))
    whole = problem.evaluate(point)
    assert whole.gradient is not None
    width = 1e-6
    for _, span in problem.layout.spans():  # one coordinate of every tensor: that of the steepest slope
        place = span.start + int(gradient[0, span].abs().argmax())
        step = torch.zeros_like(point)
        step[0, place] = width
        ends = torch.cat([point + step, point - step])
        local = problem.evaluate(ends, gradient=False, agents=[1]).loss * problem.agents
        total = problem.evaluate(ends, gradient=False).loss
        _close((local[0] - local[1]) / (2 * width), gradient[0, place], 1e-6)
        _close((total[0] - total[1]) / (2 * width), whole.gradient[0, place], 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_that_of_autograd(kind: str) -> None:
    by_hand, by_autograd = _pair(kind)
    (rows,) = _points(by_hand, 5)
    mine, theirs = by_hand.evaluate(rows), by_autograd.evaluate(rows)
    assert mine.gradient is not None
    assert theirs.gradient is not None
    _close(mine.loss, theirs.loss)
    _close(mine.gradient, theirs.gradient)
    assert mine.correct is not None
    assert mine.test_correct is not None
    assert (mine.count, mine.test_count) == (sum(COUNTS), 11)
    assert mine.correct.tolist() == theirs.correct.tolist()  # type: ignore[union-attr]
    assert mine.test_correct.tolist() == theirs.test_correct.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_what_the_definition_says(kind: str) -> None:
    problem, data = _pair(kind)
    (rows,) = _points(problem, 3)
    seen = problem.evaluate(rows, gradient=False)
    assert seen.gradient is None
    assert seen.correct is not None
    for row, loss, correct in zip(rows, seen.loss, seen.correct, strict=True):
        model = problem.model(row)
        with torch.no_grad():
            scores = [(model(x), y) for x, y in data.data]
        locals_ = torch.stack([F.cross_entropy(s, y) for s, y in scores])
        _close(loss, locals_.mean() + 0.5 * 0.03 * (row**2).sum())
        assert int(correct) == sum(int((s.argmax(dim=1) == y).sum()) for s, y in scores)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_of_single_agents_add_up(kind: str) -> None:
    problem, _ = _pair(kind)
    (rows,) = _points(problem, 2)
    whole = problem.evaluate(rows)
    parts = [problem.evaluate(rows, agents=part) for part in ([2], [0, 1])]
    _close(sum(part.loss for part in parts), whole.loss, 1e-13)  # type: ignore[arg-type]
    _close(sum(part.gradient for part in parts), whole.gradient, 1e-13)  # type: ignore[arg-type,misc]
    assert sum(part.correct for part in parts).tolist() == whole.correct.tolist()  # type: ignore
    assert [part.count for part in parts] == [6, 13]
    assert all(part.test_correct is None for part in parts)
    none = problem.evaluate(rows, agents=[])
    assert float(none.loss.abs().max()) == none.count == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", [1, 4, 100])
def test_blocks_do_not_show(kind: str, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = _pair(kind)
    points, agents = _points(problem, 3, 2), torch.arange(3)
    samples = torch.arange(10).expand(3, -1) % torch.tensor(COUNTS).unsqueeze(1)
    wanted, seen = problem.gradients(points, samples, agents), problem.evaluate(points[0])
    problem.pairs_on_cpu = pairs
    monkeypatch.setattr("docom.problems.neural.SHORTEST", 4)
    monkeypatch.setattr("docom.problems.neural.ROWS_ON_CPU", 2)
    for mine, theirs in zip(problem.gradients(points, samples, agents), wanted, strict=True):
        _close(mine, theirs, 1e-13)
    again = problem.evaluate(points[0])
    mine = problem.gradients(points, samples, agents)
    assert all(map(torch.equal, problem.gradients_reusing(1, points, samples, agents), mine))
    assert torch.equal(points[1], mine[1])
    _close(again.loss, seen.loss, 1e-13)
    _close(again.gradient, seen.gradient, 1e-13)  # type: ignore[arg-type]
    assert again.correct.tolist() == seen.correct.tolist()  # type: ignore[union-attr]
    assert again.test_correct.tolist() == seen.test_correct.tolist()  # type: ignore[union-attr]


def _with_margins(form: torch.dtype) -> MLP:
    """24 inputs, of which every third is zero in all samples but one of each agent and of the test set."""
    draw = torch.Generator().manual_seed(2)

    def samples(count: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randint(1, 100, (count, 24), generator=draw)
        margin = torch.arange(0, 24, 3)
        inputs[:, margin] = 0
        inputs[margin * 9, margin] = 7 if form == torch.uint8 else -128
        return inputs.to(form), torch.randint(4, (count,), generator=draw)

    agents, test = [samples(count) for count in (250, 330, 290)], samples(260)
    return MLP(agents, hidden=5, classes=4, weight_decay=0.03, test=test, scale=0.02, shift=-0.4)


@pytest.mark.parametrize("form", [torch.uint8, torch.int8, torch.bool, torch.float64])
@pytest.mark.parametrize("agents", [None, [1], [2, 0], []])
def test_inputs_left_out_where_they_are_zero_do_not_show(form: torch.dtype, agents: list[int] | None) -> None:
    problem = _with_margins(form).to(torch.float64, "cpu")
    lean = Lean.of(problem)
    assert lean is not None
    assert lean.network.dimension == problem.dimension - 8 * 5
    assert len(lean.network.train.positions([0, 1, 2])) == 250 + 330 + 290 - 3 * 8
    (rows,) = _points(problem, 4)
    for test in (None, True, False):
        found = problem.evaluate(rows, agents=agents, test=test)
        wanted = NeuralProblem.evaluate(problem, rows, agents=agents, test=test)
        _close(found.loss, wanted.loss, 1e-13)
        _close(found.gradient, wanted.gradient, 1e-13)  # type: ignore[arg-type]
        assert found.correct.tolist() == wanted.correct.tolist()  # type: ignore[union-attr]
        assert (found.count, found.test_count) == (wanted.count, wanted.test_count)
        assert (found.test_correct is None) == (wanted.test_correct is None)
        if wanted.test_correct is not None:
            assert found.test_correct.tolist() == wanted.test_correct.tolist()  # type: ignore[union-attr]
    assert problem.evaluate(rows, gradient=False, agents=agents).gradient is None
    alone = problem.only([1])
    _close(alone.evaluate(rows, agents=[1]).gradient, NeuralProblem.evaluate(problem, rows, agents=[1]).gradient, 1e-13)


def test_inputs_that_vary_are_all_used() -> None:
    problem, _ = _pair("mlp")
    assert Lean.of(problem) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_agents_row_does_not_depend_on_the_others(kind: str) -> None:
    problem, _ = _pair(kind)
    (point,) = _points(problem, 3)
    samples = torch.tensor([[0, 3, 3], [8, 1, 0], [5, 2, 4]])
    (together,) = problem.gradients([point], samples, torch.arange(3))
    for agent in range(3):
        row = slice(agent, agent + 1)
        (alone,) = problem.gradients([point[row]], samples[row], torch.tensor([agent]))
        _close(alone, together[row], 1e-13)
        (again,) = problem.gradients([point[row]], samples[row], torch.tensor([agent]))
        assert torch.equal(alone, again)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [torch.float32, torch.float64])
def test_bytes_scaled_late_are_floats_scaled_before(kind: str, form: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    shape = (784,) if kind == "mlp" else (28, 28)
    maker = MLP if kind == "mlp" else LeNet5
    scale, shift = (1 / (255 * 0.3081), -0.1307 / 0.3081) if kind == "mlp" else (-1 / 255, 1.0)

    def images(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8)
        return pixels, torch.randint(10, (count,), generator=draw)

    def scaled(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        pixels = pair[0].double() / 255
        return ((pixels - 0.1307) / 0.3081 if kind == "mlp" else 1 - pixels), pair[1]

    data, test = [images(3), images(5)], images(4)
    small = maker(data, test=test, scale=scale, shift=shift).to(form, "cpu")
    large = maker([scaled(pair) for pair in data], test=scaled(test)).to(form, "cpu")
    assert small.data_bytes() == 12 * 784 + 12 * 8
    assert large.data_bytes() == 12 * 784 * form.itemsize + 12 * 8
    rows = small.start(2).to(form).expand(2, -1)
    samples = torch.tensor([[2, 0, 0], [4, 3, 1]])
    tolerance = 1e-12 if form == torch.float64 else 2e-5
    for batch in (samples, None):
        (mine,), (theirs,) = (p.gradients([rows], batch, torch.arange(2)) for p in (small, large))
        assert mine.dtype == form
        _close(mine, theirs, tolerance)
    seen, other = small.evaluate(rows), large.evaluate(rows)
    assert seen.loss.dtype == form
    _close(seen.loss, other.loss, tolerance)
    _close(seen.gradient, other.gradient, tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [10, 62])
def test_the_papers_sizes(classes: int) -> None:
    pixels, targets = torch.zeros(1, 28, 28, dtype=torch.uint8), torch.tensor([0])
    state = torch.get_rng_state()
    lenet = LeNet5([(pixels, targets)], classes=classes)
    mlp = MLP([(pixels.reshape(1, -1), targets)])
    mlp.model(mlp.start(0))
    lenet.model(lenet.start(0))
    assert torch.equal(state, torch.get_rng_state()), "torch's generator was drawn from"
    assert lenet.dimension == {10: 61_706, 62: 66_126}[classes]
    assert lenet.layout.shapes == tuple(tuple(p.shape) for p in _lenet(classes).parameters())
    layers = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert lenet.layout.names == tuple(f"{layer}.{part}" for layer in layers for part in ("weight", "bias"))
    assert mlp.dimension == 79_510
    names = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")
    assert mlp.layout == Layout(((100, 784), (100,), (10, 100), (10,)), names)


@pytest.mark.parametrize("kind", KINDS)
def test_start_is_uniform_within_each_layers_bounds(kind: str) -> None:
    problem, _ = _pair(kind)
    start = problem.start(4)
    assert start.shape == (problem.dimension,)
    assert torch.equal(start, problem.start(4))
    assert not torch.equal(start, problem.start(5))
    spans = list(problem.layout.spans())
    for (shape, weight), (_, bias) in zip(spans[::2], spans[1::2], strict=True):
        layer = torch.cat([start[weight], start[bias]]) * sqrt(prod(shape[1:]))
        assert float(layer.abs().max()) <= 1
        # mean 0 and variance 1/3, up to five standard errors
        assert abs(float(layer.mean())) < 5 / sqrt(3 * len(layer))
        assert abs(float(layer.square().mean()) - 1 / 3) < 5 * sqrt(4 / 45 / len(layer))


@pytest.mark.parametrize("kind", KINDS)
def test_model_holds_the_row(kind: str) -> None:
    problem, other = _pair(kind)
    (rows,) = _points(problem, 1)
    model, wanted = problem.model(rows[0]), other.model(rows[0])
    inputs = other.data[1][0]
    _close(model(inputs), wanted(inputs), 1e-13)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), rows[0])
    assert tuple(name for name, _ in model.named_parameters()) == problem.layout.names
    assert problem.model(rows[0].float())(inputs.float()).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_keeps_equally_many_of_everybody(kind: str) -> None:
    problem, full = _pair(kind)
    (rows,) = _points(problem, 2)
    small, wanted = problem.sampled(12, seed=7), full.sampled(12, seed=7)
    assert small.counts.tolist() == [len(kept) for kept in subset(COUNTS, 12, 7)] == [4, 4, 4]
    seen, other = small.evaluate(rows), wanted.evaluate(rows)
    _close(seen.loss, other.loss)
    assert (seen.count, seen.test_count) == (12, 11)
    assert seen.correct.tolist() == other.correct.tolist()  # type: ignore[union-attr]
    assert seen.test_correct.tolist() == other.test_correct.tolist()  # type: ignore[union-attr]
    assert problem.counts.tolist() == list(COUNTS)


def test_empty_ground_counts_once_in_a_pool() -> None:
    # Where an image is empty all four outputs of a pool are equal, and one of them has the slope.
    draw = torch.Generator().manual_seed(0)
    images = torch.zeros(8, 1, 28, 28, dtype=torch.float64)
    images[:, :, 9:17, 11:18] = torch.rand(8, 1, 8, 7, generator=draw, dtype=torch.float64)
    data = [(images[:5], torch.arange(5)), (images[5:], torch.arange(3))]
    by_hand, by_autograd = LeNet5(data, classes=10, weight_decay=0.0), ModuleProblem(_lenet(10).double(), data)
    (point,) = _points(by_hand, 2)
    (found,) = by_hand.gradients([point], None, torch.arange(2))
    _close(found, by_autograd.gradients([point], None, torch.arange(2))[0])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-2, 2), min_size=32, max_size=32), st.integers(-1, 1), st.integers(0, 99))
def test_ties_in_a_pool_go_as_in_torch(values: list[int], bias: int, seed: int) -> None:
    images = torch.tensor(values, dtype=torch.float64).view(1, 2, 4, 4).requires_grad_()  # [b, channel, y, x]
    shift = torch.full((2,), float(bias), dtype=torch.float64, requires_grad=True)
    wanted = F.max_pool2d(F.relu(images + shift.view(2, 1, 1)), 2)
    slopes = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    wanted.backward(slopes)
    # [pool y, row, place in the pool * channel, pool x * b], as the convolutions leave it
    four = images.detach()[0].view(2, 2, 2, 2, 2).permute(1, 2, 4, 0, 3).reshape(2, 1, 8, 2)
    pooled = pool(four, shift.detach().unsqueeze(0))
    assert torch.equal(pooled.result[:, 0].transpose(0, 1), wanted[0])
    found, by_bias = unpool(slopes[0].transpose(0, 1).unsqueeze(1).contiguous(), pooled)
    assert images.grad is not None
    back = found.view(2, 2, 2, 2, 2).permute(3, 0, 1, 4, 2).reshape(2, 4, 4)
    assert torch.equal(back, images.grad[0])
    assert shift.grad is not None
    _close(by_bias[0], shift.grad, 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_one_by_one_and_all_at_once(kind: str) -> None:
    problem, _ = _pair(kind)

    def final(exact: bool) -> Tensor:
        algorithm = DoCoM(lr=0.1, gamma=0.3, beta=0.1)
        run = simulate(
            problem,
            algorithm,
            steps=4,
            batch_size=3,
            compressor="topk:0.1",
            dtype=torch.float64,
            exact=exact,
            progress=False,
        )
        return run.x

    _close(final(True), final(False), 1e-9)


IMAGES, LABELS = torch.zeros(3, 28, 28), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LeNet5([]), ValueError, "data is empty"),
        (lambda: LeNet5([(torch.zeros(3, 32, 32), LABELS)]), ValueError, "LeNet-5 takes images"),
        (lambda: LeNet5([(IMAGES, LABELS)], classes=2), ValueError, "from 0 to 1, agent 0 has"),
        (lambda: LeNet5([(IMAGES, LABELS - 1)]), ValueError, "from 0 to 61, agent 0 has"),
        (lambda: LeNet5([(IMAGES, LABELS.double())]), ValueError, "targets are integers"),
        (lambda: LeNet5([(IMAGES, LABELS)], classes=1), ValueError, "at least 2 classes"),
        (lambda: LeNet5([(IMAGES, LABELS)], weight_decay=-1.0), ValueError, "weight_decay must be >= 0"),
        (lambda: LeNet5([(IMAGES, LABELS)], scale=float("nan")), ValueError, "must be finite"),
        (lambda: LeNet5([(IMAGES / 0, LABELS)]), FloatingPointError, "agent 0 hold a NaN"),
        (lambda: LeNet5([(IMAGES, LABELS)], test=(IMAGES.byte(), LABELS)), ValueError, "the test set has"),
        (lambda: MLP([(IMAGES, LABELS)]), ValueError, r"\[m, p\] and \[m\]"),
        (lambda: MLP([(IMAGES[0], LABELS)]), ValueError, r"\[m, p\] and \[m\]"),
        (lambda: MLP([(IMAGES[:, 0], LABELS)], hidden=0), ValueError, "at least one unit"),
        (lambda: MLP([(IMAGES[:, 0], LABELS), (IMAGES[:, 0, 1:], LABELS)]), ValueError, "agent 1 has inputs of"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
