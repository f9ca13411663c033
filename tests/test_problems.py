"""Problems: gradients against autograd of losses written out here, measures against their definitions."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import docom
from conftest import least_squares
from docom.problems import LeafSynthetic, LeastSquares, LogisticRegression, ModuleProblem, Problem
from docom.rng import BATCH, Key, batch_indices
from test_relations import begin

COUNTS = (3, 7, 4, 12)
Local = Callable[[int, Tensor, Tensor], Tensor]  # agent, x [d], sample numbers -> f_i(x) on these samples


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the zoo: each problem beside an independent spelling of its loss -------------------------------------------------


def squares() -> tuple[Problem, Local]:
    A, b = random(3, 5, 4, seed=1), random(3, 5, seed=2)

    def local(agent: int, x: Tensor, rows: Tensor) -> Tensor:
        residual = A[agent, rows] @ x - b[agent, rows]
        return residual.dot(residual) / (2 * len(rows))

    return LeastSquares(A, b), local


def labelled(seed: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(random(m, 5, seed=seed + m), torch.arange(m) % 2) for m in COUNTS]


def logistic(zero_one: bool = True) -> tuple[Problem, Local]:
    data = labelled()

    def local(agent: int, x: Tensor, rows: Tensor) -> Tensor:
        features, labels = data[agent][0][rows], data[agent][1][rows]
        fit = F.binary_cross_entropy_with_logits(features @ x, labels.double())
        return fit + 0.05 * x.dot(x) / 2

    given = data if zero_one else [(x, 2 * y - 1) for x, y in data]
    return LogisticRegression(given, weight_decay=0.05, test=(random(6, 5, seed=9), torch.arange(6) % 2)), local


def leaf() -> tuple[Problem, Local]:
    problem = LeafSynthetic(agents=4, classes=3, features=6, weight_decay=0.02)
    starts = [0, *torch.cumsum(problem.counts, 0).tolist()]

    def local(agent: int, x: Tensor, rows: Tensor) -> Tensor:
        theta = x.reshape(3, 7)
        total = 0.02 * (theta**2).sum() / 2
        for row in rows.tolist():
            features, label = problem.features[starts[agent] + row], int(problem.targets[starts[agent] + row])
            for k in range(3):
                margin = (1 if k == label else -1) * features.dot(theta[k])
                total = total + 1 / (1 + torch.exp(-margin)) / len(rows)
        return total

    return problem, local


def network(
    module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], targets: Callable[[int], Tensor]
) -> tuple[Problem, Local]:
    data = [(random(m, 5, seed=m), targets(m)) for m in COUNTS]
    problem = ModuleProblem(module, data, loss=loss, weight_decay=0.03)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    shapes = [p.shape for p in module.parameters() if p.requires_grad]

    def local(agent: int, x: Tensor, rows: Tensor) -> Tensor:
        pieces = x.split([shape.numel() for shape in shapes])
        values = {name: piece.reshape(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        outputs = torch.func.functional_call(module, values, (data[agent][0][rows],))
        return loss(outputs, data[agent][1][rows]) + 0.03 * x.dot(x) / 2

    return problem, local


class Tied(nn.Module):
    """One matrix used twice, as embeddings often are."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.second(torch.tanh(self.first(x)))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    module[0].weight.requires_grad_(False)
    return module


def made(module: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return module().double()


def classes(m: int) -> Tensor:
    return torch.arange(m) % 3


ZOO: dict[str, Callable[[], tuple[Problem, Local]]] = {
    "least-squares": squares,
    "logistic": logistic,
    "logistic-signs": lambda: logistic(zero_one=False),
    "leaf": leaf,
    "module": lambda: network(
        made(lambda: nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3))), F.cross_entropy, classes
    ),
    "module-regression": lambda: network(
        made(lambda: nn.Linear(5, 2)), F.mse_loss, lambda m: random(m, 2, seed=40 + m)
    ),
    "module-tied": lambda: network(made(Tied), F.cross_entropy, classes),
    "module-frozen": lambda: network(made(frozen), F.cross_entropy, classes),
    "module-group-norm": lambda: network(
        made(lambda: nn.Sequential(nn.Linear(5, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3))), F.cross_entropy, classes
    ),
}


@pytest.fixture(params=ZOO, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[Problem, Local]:
    return ZOO[request.param]()


def points(problem: Problem) -> list[Tensor]:
    return [0.5 * random(problem.agents, problem.dimension, seed=seed) for seed in (11, 12)]


def automatic(local: Local, agent: int, x: Tensor, rows: Tensor) -> Tensor:
    x = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(local(agent, x, rows), x)
    return gradient


def assert_gradients(
    problem: Problem, local: Local, found: list[Tensor], at: list[Tensor], rows: list[Tensor], agents: list[int]
) -> None:
    assert len(found) == len(at)
    for gradient, x in zip(found, at, strict=True):
        assert gradient.shape == (len(agents), problem.dimension)
        for row, agent in enumerate(agents):
            assert torch.allclose(gradient[row], automatic(local, agent, x[row], rows[row]), rtol=1e-10, atol=1e-12)


def test_full_gradients(case: tuple[Problem, Local]) -> None:
    """Of all agents in one call, at two points, whatever their sample counts."""
    problem, local = case
    everyone = list(range(problem.agents))
    rows = [torch.arange(int(m)) for m in problem.counts]
    assert_gradients(
        problem,
        local,
        problem.gradients(points(problem), None, torch.tensor(everyone)),
        points(problem),
        rows,
        everyone,
    )


def test_gradients_on_batches(case: tuple[Problem, Local]) -> None:
    """Both points on the same samples; a sample drawn twice counts twice; batches may exceed an agent's data."""
    problem, local = case
    everyone = torch.arange(problem.agents)
    draw = torch.Generator().manual_seed(5)
    for size in (1, 2, 9):
        samples = torch.stack([torch.randint(int(m), (size,), generator=draw) for m in problem.counts])
        found = problem.gradients(points(problem), samples, everyone)
        assert_gradients(problem, local, found, points(problem), list(samples), everyone.tolist())


def test_gradients_of_some_agents(case: tuple[Problem, Local]) -> None:
    """A process asks for its own agents only: row r is agent agents[r]."""
    problem, local = case
    some = torch.tensor([0, problem.agents - 1])
    at = [x[some] for x in points(problem)]
    rows = [torch.arange(int(problem.counts[agent])) for agent in some]
    assert_gradients(problem, local, problem.gradients(at, None, some), at, rows, some.tolist())
    samples = torch.tensor([[0, 2, 2], [1, 0, 1]])
    assert_gradients(problem, local, problem.gradients(at, samples, some), at, list(samples), some.tolist())


def test_gradients_by_finite_differences(case: tuple[Problem, Local]) -> None:
    """Of the loss that `evaluate` reports for one agent: what is reported is what is optimised."""
    problem, _ = case
    x, h = points(problem)[0][:1], 1e-5
    steps = h * torch.eye(problem.dimension, dtype=torch.float64)
    for agent in (0, problem.agents - 1):
        ahead, behind = (problem.evaluate(x + sign * steps, gradient=False, agents=[agent]).loss for sign in (1, -1))
        slope = problem.agents * (ahead - behind) / (2 * h)
        gradient = problem.gradients([x], None, torch.tensor([agent]))[0][0]
        assert torch.allclose(slope, gradient, rtol=1e-6, atol=1e-7)


def test_evaluation_is_the_average_of_the_local_losses(case: tuple[Problem, Local]) -> None:
    problem, local = case
    x = points(problem)[0]
    found = problem.evaluate(x)
    assert found.gradient is not None
    rows = [torch.arange(int(m)) for m in problem.counts]
    for row in range(len(x)):
        values = [local(agent, x[row], rows[agent]) for agent in range(problem.agents)]
        slopes = [automatic(local, agent, x[row], rows[agent]) for agent in range(problem.agents)]
        assert float(found.loss[row]) == pytest.approx(float(sum(values)) / problem.agents, rel=1e-12)
        assert torch.allclose(found.gradient[row], sum(slopes) / problem.agents, rtol=1e-10, atol=1e-12)
    alone = problem.evaluate(x, gradient=False)
    assert alone.gradient is None
    assert torch.allclose(alone.loss, found.loss, rtol=1e-13)


def test_parts_of_an_evaluation_add_up(case: tuple[Problem, Local]) -> None:
    """Processes evaluate their own agents' data and add: loss, gradient and hits."""
    problem, _ = case
    x = points(problem)[1]
    whole = problem.evaluate(x)
    parts = [problem.evaluate(x, agents=agents) for agents in ([0], list(range(2, problem.agents)), [1])]
    assert torch.allclose(sum(part.loss for part in parts), whole.loss, rtol=1e-13)
    assert whole.gradient is not None
    assert torch.allclose(
        sum(part.gradient for part in parts if part.gradient is not None), whole.gradient, rtol=1e-11, atol=1e-13
    )
    if whole.correct is not None:
        assert torch.equal(sum(part.correct for part in parts if part.correct is not None), whole.correct)
        assert sum(part.count for part in parts) == whole.count == int(problem.counts.sum())


def test_no_agents_have_nothing_to_say(case: tuple[Problem, Local]) -> None:
    problem, _ = case
    x = points(problem)[0]
    found = problem.evaluate(x, agents=[])
    assert found.gradient is not None
    assert float(found.loss.abs().max()) == float(found.gradient.abs().max()) == found.count == 0


def test_copies_of_another_type_agree(case: tuple[Problem, Local]) -> None:
    problem, _ = case
    single = problem.to(torch.float32, "cpu")
    x = points(problem)[0]
    everyone = torch.arange(problem.agents)
    (double_gradient,), (single_gradient,) = (
        p.gradients([rows], None, everyone) for p, rows in ((problem, x), (single, x.float()))
    )
    assert single_gradient.dtype == torch.float32
    assert torch.allclose(single_gradient.double(), double_gradient, atol=1e-4)
    assert problem.evaluate(x).loss.dtype == torch.float64, "the original is as it was"


def test_points_are_not_written_to(case: tuple[Problem, Local]) -> None:
    problem, _ = case
    at = points(problem)
    problem.gradients(at, None, torch.arange(problem.agents))
    problem.evaluate(at[0])
    assert all(torch.equal(x, kept) for x, kept in zip(at, points(problem), strict=True))


@pytest.mark.parametrize("whole", [True, False])
def test_a_gradient_may_take_its_points_place(case: tuple[Problem, Local], whole: bool) -> None:
    problem, _ = case
    agents, at = torch.arange(problem.agents), points(problem)
    batch = None if whole else torch.tensor([0, 1]).expand(problem.agents, -1)
    wanted = problem.gradients(at, batch, agents)
    for spent in (0, 1):
        at = points(problem)
        found = problem.gradients_reusing(spent, at, batch, agents)
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-14)
        assert found[spent].data_ptr() == at[spent].data_ptr()
        assert torch.equal(at[1 - spent], points(problem)[1 - spent]), "the other one stays"


# --- least squares ----------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 5), m=st.integers(1, 6), d=st.integers(1, 6), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_solution_of_least_squares_has_no_gradient(n: int, m: int, d: int, seed: int) -> None:
    """Also where there are fewer equations than unknowns; it is the shortest then."""
    problem = LeastSquares(random(n, m, d, seed=seed), random(n, m, seed=seed + 1))
    x = problem.solution()
    assert x.dtype == torch.float64
    gradient = problem.evaluate(x.unsqueeze(0)).gradient
    assert gradient is not None
    assert float(gradient.abs().max()) <= 1e-9 * (
        1 + float(problem.features.abs().max()) ** 2 * (1 + float(x.abs().max()))
    )
    expected = np.linalg.pinv(problem.features.numpy(), rcond=1e-12) @ problem.targets.numpy()
    assert np.allclose(x.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_least_squares_starts_at_zero_and_is_one_vector() -> None:
    problem = least_squares(n=3, m=4, d=5)
    assert torch.equal(problem.start(1), torch.zeros(5, dtype=torch.float64))
    assert problem.layout.shapes == ((5,),)
    assert (problem.agents, problem.dimension, problem.counts.tolist()) == (3, 5, [4, 4, 4])


@pytest.mark.parametrize(("A", "b"), [((2, 3), (2, 3)), ((2, 3, 4), (2, 4)), ((2, 3, 4), (3, 2)), ((2, 3, 4), (6,))])
def test_least_squares_refuses_other_shapes(A: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[n, m, d\].*\[n, m\]"):
        LeastSquares(torch.zeros(A), torch.zeros(b))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_least_squares_refuses_emptiness_in_words(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"sample|agent|shape"):
        LeastSquares(torch.zeros(shape), torch.zeros(shape[:2]))


# --- logistic regression ----------------------------------------------------------------------------------------------


def test_logistic_accuracy_counts_the_right_sides() -> None:
    problem, _ = logistic()
    assert isinstance(problem, LogisticRegression)
    x = random(3, 5, seed=21)
    found = problem.evaluate(x)
    pooled = torch.cat([features for features, _ in labelled()])
    truth = torch.cat([labels for _, labels in labelled()])
    assert found.correct is not None
    assert found.correct.tolist() == [int(((pooled @ row > 0).long() == truth).sum()) for row in x]
    assert found.test_correct is not None
    held_out = random(6, 5, seed=9)
    assert found.test_correct.tolist() == [int(((held_out @ row > 0).long() == torch.arange(6) % 2).sum()) for row in x]
    assert (found.count, found.test_count) == (sum(COUNTS), 6)


def test_logistic_labels_of_an_agent_with_one_class() -> None:
    """All zeros mean -1 and all ones +1, also where an agent never sees the other class."""
    x = torch.ones(2, 1)
    zeros, ones = torch.tensor([0, 0]), torch.tensor([1, 1])
    problem = LogisticRegression([(x, zeros), (x, ones)], weight_decay=0.0)
    low, high = problem.gradients([torch.zeros(2, 1, dtype=torch.float64)], None, torch.arange(2))[0]
    assert (float(low), float(high)) == (0.5, -0.5)


def test_logistic_refuses_what_are_no_labels() -> None:
    for labels in (torch.tensor([0, 2]), torch.tensor([-1.0, 0.5]), torch.tensor([1.0, float("nan")])):
        with pytest.raises(ValueError, match="-1 and 1, or 0 and 1"):
            LogisticRegression([(torch.ones(2, 3), labels)])
    with pytest.raises(ValueError, match="labels"):
        LogisticRegression([(torch.ones(2, 3), torch.ones(3))])
    with pytest.raises(ValueError, match="features"):
        LogisticRegression([(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 4), torch.ones(2))])
    with pytest.raises(ValueError, match="weight_decay"):
        LogisticRegression([(torch.ones(2, 3), torch.ones(2))], weight_decay=-1.0)


def test_losses_of_far_scores_are_finite() -> None:
    """softplus and sigmoid, not log(1 + exp): scores of thousands occur in the paper's data."""
    problem = LogisticRegression([(torch.tensor([[1e4], [-1e4]]), torch.tensor([1, 1]))], weight_decay=0.0)
    found = problem.evaluate(torch.ones(1, 1, dtype=torch.float64))
    assert float(found.loss) == pytest.approx(5e3)
    assert found.gradient is not None
    assert float(found.gradient) == pytest.approx(5e3)


# --- the paper's synthetic problem ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paper() -> LeafSynthetic:
    return LeafSynthetic()


def test_the_papers_numbers(paper: LeafSynthetic) -> None:
    assert (paper.agents, paper.dimension) == (25, 5005)
    assert paper.layout.shapes == ((5, 1001),)
    assert sorted(paper.counts.tolist(), reverse=True) == [
        470, 403, 91, 84, 79, 51, 51, 38, 31, 25, 24, 19, 14, 10, 9, 6, 6, 5, 5, 4, 4, 4, 4, 3, 3,
    ]  # fmt: skip
    assert int(paper.counts.sum()) == 1443
    assert paper.test is not None
    assert len(paper.test[1]) == 981
    assert bool((paper.features[:, -1] == 1).all()), "the constant feature comes last"
    assert bool((paper.test[0][:, -1] == 1).all())
    assert paper.weight_decay == 1e-4


def test_the_papers_start_is_uniform_and_common(paper: LeafSynthetic) -> None:
    start = paper.start(0)
    assert start.shape == (5005,)
    assert float(start.abs().max()) <= 1 / sqrt(1001)
    assert float(start.std()) == pytest.approx(1 / sqrt(3 * 1001), rel=0.03)
    assert torch.equal(start, paper.start(0))
    assert not torch.equal(start, paper.start(1))


def test_the_loss_reported_is_the_one_optimised(paper: LeafSynthetic) -> None:
    """f, as evaluated, changes along the mean of the agents' gradients as fast as that mean says."""
    x = paper.start(3)
    everyone = torch.arange(paper.agents)
    local = paper.gradients([x.expand(25, -1).contiguous()], None, everyone)[0].mean(dim=0)
    found = paper.evaluate(x.unsqueeze(0))
    assert found.gradient is not None
    assert torch.allclose(found.gradient[0], local, rtol=1e-9, atol=1e-12)
    h = 1e-6
    direction = local / torch.linalg.vector_norm(local)
    ahead, behind = paper.evaluate(torch.stack([x + h * direction, x - h * direction])).loss
    assert float(ahead - behind) / (2 * h) == pytest.approx(float(torch.linalg.vector_norm(local)), rel=1e-6)


def test_the_papers_loss_written_out(paper: LeafSynthetic) -> None:
    """1/n sum_i 1/m_i sum_j sum_k phi(l_jk <x_j, theta_k>) + lambda/2 |theta|^2, labels +-1, lowest score predicts."""
    x = paper.start(1)
    theta = x.reshape(5, 1001).numpy()
    X, y = paper.features.numpy(), paper.targets.numpy()
    signs = 2.0 * (y[:, None] == np.arange(5)) - 1
    losses = (1 / (1 + np.exp(-signs * (X @ theta.T)))).sum(axis=1)
    ends = np.cumsum(paper.counts.numpy())
    per_agent = [part.mean() for part in np.split(losses, ends[:-1])]
    expected = np.mean(per_agent) + 1e-4 / 2 * (theta**2).sum()
    found = paper.evaluate(x.unsqueeze(0))
    assert float(found.loss) == pytest.approx(expected, rel=1e-12)
    assert found.correct is not None
    assert found.test_correct is not None
    assert paper.test is not None
    assert int(found.correct) == int(((X @ theta.T).argmin(axis=1) == y).sum())
    assert int(found.test_correct) == int(
        ((paper.test[0].numpy() @ theta.T).argmin(axis=1) == paper.test[1].numpy()).sum()
    )


# --- modules ----------------------------------------------------------------------------------------------------------


def test_module_layout_follows_its_trainable_parameters() -> None:
    problem = ModuleProblem(frozen(), [(torch.ones(3, 5), torch.tensor([0, 1, 2]))])
    assert problem.layout.names == ("0.bias", "2.weight", "2.bias")
    assert problem.dimension == 6 + 18 + 3
    tied = ModuleProblem(Tied(), [(torch.ones(3, 5), torch.tensor([0, 1, 2]))])
    assert tied.dimension == 25 + 5 + 5 + 1, "shared weights are one"


def test_module_keeps_frozen_parameters_and_ties() -> None:
    module = frozen()
    problem = ModuleProblem(module, [(torch.ones(3, 5), torch.tensor([0, 1, 2]))])
    model = problem.model(torch.arange(27.0))
    assert torch.equal(model[0].weight, module[0].weight)
    assert torch.equal(model[0].bias, torch.arange(6.0))
    assert torch.equal(model[2].weight, torch.arange(6.0, 24.0).reshape(3, 6))
    tied = ModuleProblem(Tied(), [(torch.ones(3, 5), torch.tensor([0, 1, 2]))])
    copy = tied.model(torch.arange(36.0))
    assert copy.first.weight is copy.second.weight


def test_module_is_not_changed() -> None:
    module = made(lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)))
    module.train()
    before = [p.clone() for p in module.parameters()]
    problem = ModuleProblem(module, [(random(6, 5), classes(6))] * 2, test=(random(4, 5, seed=1), classes(4)))
    training = begin(problem, docom.DSGD(lr=0.5), batch=2)
    for _ in range(3):
        training.take_step()
    problem.evaluate(training.state.x)
    assert all(torch.equal(p, kept) for p, kept in zip(module.parameters(), before, strict=True))
    assert module.training
    assert problem.module.training
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("kind", ["classes", "one ignored", "at every place", "shares"])
def test_cross_entropy_of_many_agents_is_torchs(kind: str) -> None:
    """Whatever the targets are; class numbers take a way of their own."""
    inputs = random(2, 6, 5, seed=3)
    module = made(lambda: nn.Linear(5, 3))
    targets = torch.stack([classes(6), classes(6).flip(0)])
    if kind == "one ignored":
        targets[1, 2] = -100
    elif kind == "at every place":
        module = made(lambda: nn.Sequential(nn.Linear(5, 12), nn.Unflatten(1, (3, 4))))
        targets = targets[:, :, None].expand(2, 6, 4).contiguous()
    elif kind == "shares":
        targets = random(2, 6, 3, seed=4).softmax(dim=2)
    problem = ModuleProblem(module.double(), list(zip(inputs, targets, strict=True)))
    points = random(2, problem.dimension, seed=5)
    (found,) = problem.gradients([points], None, torch.arange(2))
    for row in range(2):
        model = problem.model(points[row]).requires_grad_()
        expected = torch.autograd.grad(F.cross_entropy(model(inputs[row]), targets[row]), list(model.parameters()))
        torch.testing.assert_close(found[row], torch.cat([g.flatten() for g in expected]), rtol=1e-12, atol=1e-14)


def test_module_accuracy() -> None:
    module = made(lambda: nn.Linear(5, 3))
    data = [(random(m, 5, seed=m), classes(m)) for m in COUNTS]
    test = (random(10, 5, seed=50), classes(10))
    problem = ModuleProblem(module, data, test=test)
    x = random(4, problem.dimension, seed=51)
    found = problem.evaluate(x)
    for row in range(4):
        model = problem.model(x[row])
        assert int(found.correct[row]) == sum(int((model(a).argmax(dim=1) == y).sum()) for a, y in data)  # type: ignore[index]
        assert int(found.test_correct[row]) == int((model(test[0]).argmax(dim=1) == test[1]).sum())  # type: ignore[index]
    assert (found.count, found.test_count) == (sum(COUNTS), 10)


def test_long_data_are_evaluated_in_pieces() -> None:
    """More samples than one pass takes, of a loss that is a mean: pieces are weighted by their length."""
    module = made(lambda: nn.Linear(2, 2))
    data = [(random(5000, 2, seed=1), torch.arange(5000) % 2), (random(3, 2, seed=2), torch.arange(3) % 2)]
    problem = ModuleProblem(module, data)
    x = problem.start(0).unsqueeze(0)
    with torch.no_grad():
        expected = sum(F.cross_entropy(module(a), y) for a, y in data) / 2
    assert float(problem.evaluate(x).loss) == pytest.approx(float(expected), rel=1e-12)
    pairs = [(a, 2 * y - 1) for a, y in data]
    linear = LogisticRegression(pairs, weight_decay=0.0)
    row = random(1, 2, seed=3)
    expected = sum(F.softplus(-(2 * y - 1) * (a @ row[0])).mean() for a, y in data) / 2
    assert float(linear.evaluate(row).loss) == pytest.approx(float(expected), rel=1e-12)


class Partly(nn.Module):
    """A module with a parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(5, 3), nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs))


def test_one_agent_alone_is_differentiated_as_many_together() -> None:
    """By autograd instead of `vmap`: the same gradients, also of parameters that are not used."""
    problem = ModuleProblem(Partly(), [(random(6, 5, seed=i), classes(6)) for i in range(3)], weight_decay=0.1)
    problem = problem.to(torch.float64, "cpu")
    rows = random(3, problem.dimension, seed=9).double()
    samples = torch.tensor([[0, 3], [1, 1], [5, 2]])
    (together,) = problem.gradients([rows], samples, torch.arange(3))
    for i in range(3):
        one = slice(i, i + 1)
        with torch.no_grad():
            (alone,) = problem.gradients([rows[one]], samples[one], torch.tensor([i]))
        torch.testing.assert_close(alone, together[one], rtol=1e-12, atol=1e-12)
        assert not alone.requires_grad
    idle = problem.layout.names.index("idle")
    _, span = list(problem.layout.spans())[idle]
    torch.testing.assert_close(together[:, span], 0.1 * rows[:, span])


class Convolving(nn.Module):
    """A convolution as a layer and one as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 3), nn.Linear(27, 3)
        self.second = nn.Parameter(0.1 * torch.randn(3, 2, 2, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(F.conv2d(self.first(inputs).relu(), self.second).flatten(1))  # type: ignore[no-any-return]


def convolving(counts: tuple[int, ...] = (9, 9, 9)) -> ModuleProblem:
    data = [(random(m, 1, 6, 6, seed=m + i), classes(m)) for i, m in enumerate(counts)]
    return ModuleProblem(made(Convolving), data, weight_decay=0.1, test=(random(7, 1, 6, 6, seed=90), classes(7)))


@pytest.mark.parametrize("first", ["gradient", "evaluation"])
def test_a_pass_is_watched(first: str) -> None:
    """What is seen does not depend on when: a run that goes on looks at another moment than one that starts."""
    problem = convolving()
    rows, before = random(3, problem.dimension), torch.get_rng_state()
    if first == "gradient":
        problem.gradients([rows], torch.tensor([[0], [1], [2]]), torch.arange(3))
    else:
        problem.evaluate(rows)
    assert problem._footprint is not None
    assert problem._footprint.convolved == 2 * 4 * 4 + 3 * 3 * 3
    assert problem._footprint.made == 2 * (2 * 4 * 4) + 3 * 3 * 3 + 3
    assert torch.equal(torch.get_rng_state(), before)


def test_what_dropout_makes_is_seen_in_evaluations_too() -> None:
    seen = []
    for evaluated in (False, True):
        problem = dropout_problem()
        rows = problem.start(0).expand(3, -1).contiguous()
        problem.evaluate(rows) if evaluated else problem.gradients([rows], None, torch.arange(3))
        seen.append(problem._footprint)
    assert seen[0] == seen[1]
    assert seen[0] is not None
    assert seen[0].made > 40 + 3


@pytest.mark.parametrize("counts", [(9, 9, 9), (3, 6, 9)])
@pytest.mark.parametrize("samples", [None, torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0]])])
@pytest.mark.parametrize(
    "limits",
    [{"CONVOLVED": 1}, {"ROOM": {"cpu": 300}}, {"WHOLE": 100, "LIGHT": 100}, {"WHOLE": 300, "LIGHT": 300}],
    ids=["convolutions apart", "agents apart", "samples one by one", "some samples at a time"],
)
def test_how_many_go_through_a_module_at_once_does_not_show(
    limits: dict[str, object], samples: Tensor | None, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, agents = convolving(counts), torch.arange(3)
    at = [random(3, problem.dimension, seed=seed) for seed in (91, 92)]
    wanted, seen = problem.gradients(at, samples, agents), problem.evaluate(at[0])
    for name, limit in limits.items():
        monkeypatch.setattr(f"docom.problems.module.{name}", limit)
    for mine, theirs in zip(problem.gradients(at, samples, agents), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)
    again = problem.evaluate(at[0])
    torch.testing.assert_close(again.loss, seen.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(again.gradient, seen.gradient, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(again.correct, seen.correct)
    torch.testing.assert_close(again.test_correct, seen.test_correct)
    assert (again.count, again.test_count) == (sum(counts), 7)
    torch.testing.assert_close(problem.evaluate(at[0], gradient=False).loss, seen.loss, rtol=1e-12, atol=0)
    problem.gradients_reusing(1, at, samples, agents)
    torch.testing.assert_close(at[1], wanted[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("width", [1, 2, 100])
def test_a_given_micro_batch_changes_nothing_but_the_order_of_sums(width: int) -> None:
    counts, agents, seen = (3, 6, 9), torch.arange(3), []
    at, samples = random(3, convolving(counts).dimension, seed=91), torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0]])
    for most in (None, width):
        problem = convolving(counts)
        problem.micro_batch = most
        passes: list[int] = []
        problem.module.register_forward_hook(
            lambda module, inputs, outputs, passes=passes: passes.append(len(inputs[0]))
        )
        seen.append(problem.gradients([at], samples, agents)[0])
        if most is not None:
            assert max(passes[1:]) == min(most, 3), "the first pass is the look at the module"
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("width", [0, -1, 1.5, True])
def test_a_micro_batch_has_samples(width: object) -> None:
    with pytest.raises(ValueError, match="micro_batch is a number of samples"):
        ModuleProblem(nn.Linear(3, 2), [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))], micro_batch=width)  # type: ignore[arg-type]


def test_agents_one_by_one_keep_their_masks_for_both_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docom.problems.module.CONVOLVED", 0)
    problem, agents = dropout_problem(), torch.arange(3)
    x = problem.start(0).expand(3, -1).contiguous()
    one, other = problem.gradients([x, x], None, agents, noise=1)
    assert torch.equal(one, other)
    assert not torch.equal(problem.gradients([x], None, agents, noise=2)[0], one)


class Pairs(nn.Linear):
    """Takes two samples, no more and no less."""

    def forward(self, inputs: Tensor) -> Tensor:
        assert len(inputs) == 2
        return super().forward(inputs)


def test_a_module_that_cannot_be_watched_still_works() -> None:
    problem = ModuleProblem(made(lambda: Pairs(5, 3)), [(random(6, 5, seed=i), classes(6)) for i in range(3)])
    x = problem.start(0).expand(3, -1).contiguous()
    (found,) = problem.gradients([x], torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.arange(3))
    assert bool(torch.isfinite(found).all())


def dropout_problem(counts: tuple[int, ...] = (6, 6, 6)) -> ModuleProblem:
    module = made(lambda: nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3)))
    return ModuleProblem(module, [(random(m, 5, seed=m + 70), classes(m)) for m in counts])


@pytest.mark.parametrize("counts", [(6, 6, 6), (3, 6, 9)])
@pytest.mark.parametrize("samples", [None, torch.tensor([[0, 1], [2, 0], [1, 1]])])
def test_both_points_of_a_step_see_the_same_dropout(counts: tuple[int, ...], samples: Tensor | None) -> None:
    """Equal points then have equal gradients; STORM's difference of the two would be noise otherwise."""
    problem = dropout_problem(counts)
    x = problem.start(0).expand(3, -1).contiguous()
    here, there = problem.gradients([x, x.clone()], samples, torch.arange(3))
    assert torch.equal(here, there)
    zero_columns = (here[0].reshape(-1)[: 40 * 5].reshape(40, 5) == 0).all(dim=1)
    assert 0 < int(zero_columns.sum()) < 40 or samples is None, "dropout must have dropped something"


def test_dropout_differs_between_steps_and_agents() -> None:
    problem = dropout_problem()
    x = problem.start(0).expand(3, -1).contiguous()
    training = begin(problem, docom.DSGD(lr=0.1), batch=None)
    first, second = (training.oracle.gradients((x,), step)[0] for step in (0, 1))
    assert not torch.equal(first, second)
    again = begin(problem, docom.DSGD(lr=0.1), batch=None)
    assert torch.equal(first, again.oracle.gradients((x,), 0)[0]), "the draw is a function of seed and step"
    twins = ModuleProblem(problem.module, [problem.data[0]] * 3)
    rows = twins.gradients([x], None, torch.arange(3))[0]
    assert not torch.equal(rows[0], rows[1]), "agents with equal data do not share their masks"


def test_dropout_is_off_in_evaluations() -> None:
    problem = dropout_problem()
    x = problem.start(0).unsqueeze(0)
    one, other = problem.evaluate(x), problem.evaluate(x)
    assert torch.equal(one.loss, other.loss)
    model = problem.model(x[0]).eval()
    with torch.no_grad():
        expected = sum(F.cross_entropy(model(a), y) for a, y in problem.data) / 3
    assert float(one.loss) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
def test_batch_norm_with_running_statistics_is_refused(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(5, 4), layer)
    with pytest.raises(ValueError, match=r"^1 is a BatchNorm.*GroupNorm"):
        ModuleProblem(module, [(torch.ones(3, 5), torch.tensor([0, 1, 2]))])


def test_batch_norm_without_running_statistics_works() -> None:
    module = made(lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)))
    problem = ModuleProblem(module, [(random(6, 5), classes(6))] * 2)
    x = problem.start(0).expand(2, -1).contiguous()
    (found,) = problem.gradients([x], None, torch.arange(2))
    F.cross_entropy(module(problem.data[0][0]), problem.data[0][1]).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    assert torch.allclose(found[0], expected, rtol=1e-9, atol=1e-12)


def beside(data: list[tuple[Tensor, Tensor]], inputs: Tensor, targets: Tensor) -> ModuleProblem:
    return ModuleProblem(nn.Linear(5, 3), [*data, (inputs, targets)])


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda data: ModuleProblem("net", data), TypeError, "Module"),
    (lambda data: ModuleProblem(nn.ReLU(), data), ValueError, "nothing to train"),
    (lambda data: ModuleProblem(nn.Linear(5, 3), []), ValueError, "empty"),
    (lambda data: ModuleProblem(nn.Linear(5, 3), data, weight_decay=-1e-4), ValueError, "weight_decay.*-0.0001"),
    (lambda data: beside(data, torch.ones(3, 5), torch.zeros(2)), ValueError, "agent 1.*3 inputs.*2"),
    (lambda data: beside(data, torch.ones(0, 5), torch.zeros(0)), ValueError, "agent 1.*0 inputs"),
    (lambda data: beside(data, torch.ones(3, 4), torch.zeros(3)), ValueError, "agent 1.*4.*5"),
])  # fmt: skip
def test_modules_refuse_what_cannot_be_trained(
    make: Callable[[object], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make([(torch.ones(3, 5), torch.tensor([0, 1, 2]))])


@pytest.mark.parametrize("agents", [1, 2])
def test_targets_beyond_the_scores_are_named(agents: int) -> None:
    """On all ways: gradients of one agent, of several, and evaluations."""
    problem = ModuleProblem(nn.Linear(5, 3), [(torch.ones(3, 5), torch.tensor([0, 1, 3]))] * agents)
    rows = torch.zeros(agents, problem.dimension)
    message = "targets of class 3, but the module has scores for 3 classes, 0 to 2"
    with pytest.raises(ValueError, match=message):
        problem.gradients([rows], torch.zeros(agents, 2, dtype=torch.int64), torch.arange(agents))
    for gradient in (False, True):
        with pytest.raises(ValueError, match=message):
            problem.evaluate(rows, gradient)


def test_an_agent_with_three_samples_is_sampled_with_replacement() -> None:
    """A batch larger than the data: training goes on, and every sample is drawn equally often."""
    drawn = torch.cat(
        [batch_indices(Key(0, BATCH), torch.tensor([0, 1]), t, torch.tensor([3, 10]), 8) for t in range(1, 501)]
    )
    first, second = drawn[0::2].flatten(), drawn[1::2].flatten()
    assert torch.bincount(first, minlength=3).sub(4000 / 3).abs().max() < 5 * sqrt(4000 * 2 / 9)
    assert torch.bincount(second, minlength=10).sub(400).abs().max() < 5 * sqrt(4000 * 0.09)
    assert (int(first.max()), int(second.max())) == (2, 9)
    problem, _ = logistic()
    training = begin(problem, docom.DoCoM(lr=0.1, gamma=0.5), compressor="topk:0.5", batch=20)
    for _ in range(5):
        training.take_step()
    assert bool(torch.isfinite(training.state.x).all())
