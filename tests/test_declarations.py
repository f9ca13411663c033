"""What a method declares of its step sizes is what checks, gamma="auto", tuning, optimizers and captured steps go by."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import docom
from conftest import least_squares
from docom import compressors, presets, report, tune
from docom.algorithms import CHANGING, Channels, Facts, Hyper, State, standing, survives
from docom.algorithms.declarations import StepSize
from docom.capture import StepNumberRead, StepSizes
from docom.cli.commands import configure
from docom.config import RunConfig
from docom.experiment import Experiment
from docom.optim import Decentralized

EXAMPLE = Path(__file__).parents[1] / "examples" / "new_algorithm.py"


@pytest.fixture
def registries() -> Iterator[None]:
    """The registries as they were, afterwards."""
    before = [(registry, dict(registry)) for registry in (docom.ALGORITHMS, compressors.COMPRESSORS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@dataclass(frozen=True)
class OwnNames(docom.Algorithm):
    """The example's method; channel and step sizes have other names."""

    eta: float = docom.learning_rate()
    mix: float | str = docom.consensus_step("x")
    lam: float = docom.step_size(0.2, at_most=1)

    name: ClassVar[str] = "own-names"
    channels: ClassVar[dict[str, str]] = {"x": "compressed"}
    facts: ClassVar[Facts] = Facts("this test", "1 compressed", "b", 4, False, title="Own Names")

    def init(self, x0: Any, grad0: Any, channels: Channels, hyper: Hyper) -> State:
        channels["x"].start(x0)
        return State(x=x0.clone(), m=grad0.clone())

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        docom.combine(state.x, (1, state.x), (-hyper.eta, state.m))
        docom.combine(state.x, (1, state.x), (hyper.mix, channels["x"].push(state.x)))
        state.points = (state.x,)

    def absorb(self, state: State, grads: Any, channels: Channels, hyper: Hyper) -> None:
        docom.combine(state.m, (1 - hyper.lam, state.m), (hyper.lam, grads[0]))


# Names are the author's to choose


def test_other_names_give_the_same_numbers(registries: None) -> None:
    example = runpy.run_path(str(EXAMPLE))["AveragedChoco"]
    settings: dict[str, Any] = {"compressor": "topk:0.3", "steps": 30, "batch_size": 2, "dtype": torch.float64}
    usual = docom.simulate(least_squares(), example(lr=0.02), **settings)
    own = docom.simulate(least_squares(), OwnNames(eta=0.02), **settings)
    assert own.description["gamma"] == {"mix": usual.description["gamma"]["gamma"]}
    assert torch.equal(own.x, usual.x)
    assert not torch.equal(docom.simulate(least_squares(), OwnNames(eta=0.02, lam=0.5), **settings).x, usual.x)


def test_torch_drives_the_learning_rate_whatever_its_name() -> None:
    def trained(algorithm: docom.Algorithm, warm: bool = False) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.ones(4))
        opt = Decentralized([parameter], algorithm)
        for step in range(3):
            parameter.grad = parameter.detach().clone()
            if warm:
                opt.param_groups[0]["lr"] = 0.1 * step
            opt.step()
        return parameter.detach()

    constant = trained(OwnNames(eta=0.1, mix=0.5))
    assert not torch.equal(trained(OwnNames(eta=0.1, mix=0.5), warm=True), constant)
    assert torch.equal(trained(OwnNames(eta=0.1)), constant)  # one agent: its consensus step is not used

    @dataclass(frozen=True)
    class NoRate(OwnNames):
        eta: float = docom.step_size(0.1)

    with pytest.raises(TypeError, match=r"declares no learning rate.*docom\.learning_rate\(\)"):
        Decentralized([torch.nn.Parameter(torch.ones(4))], NoRate())


def test_a_registered_method_is_known_everywhere(registries: None, tmp_path: Path) -> None:
    docom.register(OwnNames)
    problem = {"name": "least-squares"}
    with pytest.raises(ValueError, match=r"own-names needs a learning rate: give --set eta=\.\.\., or eta under hyper"):
        RunConfig("own-names", problem)
    config = RunConfig("own-names", problem, hyper={"eta": 0.1}, compressor="topk:0.25")
    assert tune.paper_grid(config, docom.problems.LeastSquares(torch.ones(2, 3, 8), torch.ones(2, 3)).layout) == {
        "eta": [0.1, 0.01, 0.001],
        "mix": tune.gammas(0.25),
    }
    assert presets.label("own-names", "topk:0.25") == "Own Names, top-k 25%"
    assert presets.Setting("own-names", "topk:0.05", {"eta": 0.1}, 4).messages == 1
    assert configure("synthetic", "own-names", None, {}, {"eta": 0.1}).compressor == "topk:0.05"
    run = report.load([_run_of(config, tmp_path)])[0]
    assert report.looks.rank(run) == len(docom.ALGORITHMS) - 1
    taken = {kind.facts.colour for kind in docom.ALGORITHMS.values()}
    assert next(report.looks.looks([run]))[0] not in taken


def _run_of(config: RunConfig, folder: Path) -> Path:
    from docom.runner import execute

    execute(replace(config, steps=4, eval_every=2, threads=1), folder / "run", folder)
    return folder / "run"


def test_a_size_that_is_not_declared_is_named() -> None:
    with pytest.raises(AttributeError, match=r"dsgd has no step size 'lam', it has lr; declare it.*step_size"):
        docom.DSGD(lr=0.1).hyper(0).lam  # noqa: B018


# Declarations


def test_every_bound_is_checked() -> None:
    tries = (-1.0, 0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan)
    for size, allowed, words in [
        (StepSize(above=0), (0.5, 1.0, 2.0), "> 0"),
        (StepSize(at_least=0, below=1), (0.0, 0.5), "in [0, 1)"),
        (StepSize(above=0, at_most=1), (0.5, 1.0), "in (0, 1]"),
        (StepSize(at_most=1), (-1.0, 0.0, 0.5, 1.0), "<= 1"),
        (StepSize(), (-1.0, 0.0, 0.5, 1.0, 2.0), "a finite number"),
    ]:
        assert tuple(value for value in tries if size.contains(value)) == allowed
        assert size.range == words


@given(value=st.floats(allow_nan=True), name=st.sampled_from(sorted(docom.ALGORITHMS)))
def test_methods_take_what_they_declare_and_nothing_else(value: float, name: str) -> None:
    kind = docom.ALGORITHMS[name]
    for step, size in kind.step_sizes().items():
        given = {"lr": 0.1} | {step: value}
        if size.contains(value):
            assert kind(**given).schedules()[step](0) == value
        else:
            with pytest.raises(ValueError, match=f"{step} of {name} must be"):
                kind(**given)


def test_a_constant_stays_one() -> None:
    @dataclass(frozen=True)
    class Fixed(OwnNames):
        lam: float = docom.step_size(0.2, at_most=1, schedulable=False)

    assert Fixed(eta=0.1, lam=0.5).schedules()["lam"](7) == 0.5
    with pytest.raises(ValueError, match="lam is one number for the whole run, got the schedule inverse-sqrt"):
        Fixed(eta=0.1, lam="inverse-sqrt:0.5")  # type: ignore[arg-type]


def test_none_stands_for_the_step_size_it_is_like() -> None:
    algorithm = docom.DoCoM(lr=0.1, gamma="inverse-sqrt:0.4")
    assert algorithm.hyper(3).gamma_g == algorithm.hyper(3).gamma == 0.2
    assert set(docom.DoCoM(lr=0.1).schedules()) == {"lr", "beta", "heavy_ball"}  # to be measured


def _declaring(**fields: Any) -> type:
    return dataclass(frozen=True)(
        type("Wrong", (OwnNames,), fields | {"__annotations__": dict.fromkeys(fields, "float")})
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mix": docom.consensus_step("model")}, "Wrong.mix: unknown channel 'model'.*x"),
        ({"lam": docom.step_size(0.1, damping_of="y")}, "Wrong.lam: unknown channel 'y'"),
        ({"other": docom.consensus_step("x", default=None, like="gamma")}, "Wrong.other: unknown step size 'gamma'"),
        ({"t": docom.step_size(0.1)}, r"hyper\.t is the number of the step"),
        ({"more": docom.learning_rate(0.1)}, "several learning rates"),
    ],
)
def test_declarations_that_contradict_the_method_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        _declaring(**fields).step_sizes()  # type: ignore[attr-defined]


# Registering


def test_a_compressor_is_registered_as_one(registries: None) -> None:
    @docom.register
    @dataclass(frozen=True)
    class Half(docom.TopK):
        """Half of the entries."""

        fraction: float | None = 0.5
        name: ClassVar[str] = "half"

    assert "half" not in docom.ALGORITHMS
    assert compressors.parse("half") == Half()
    settings: dict[str, Any] = {"steps": 5, "dtype": torch.float64}
    found = [
        docom.simulate(least_squares(), docom.DoCoM(lr=0.02), compressor=compressor, **settings).x
        for compressor in ("half", "topk:0.5")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (int, TypeError, "takes a subclass of Algorithm, Compressor or Problem.*got <class 'int'>"),
        (OwnNames(eta=0.1), TypeError, "takes a subclass of Algorithm"),
        (type("Nameless", (docom.Algorithm,), {}), ValueError, "Nameless needs a name"),
        (type("Spaced", (docom.TopK,), {"name": "my own"}), ValueError, "letters, digits and dashes.*'my own'"),
        (type("Other", (docom.TopK,), {"name": "topk"}), ValueError, "'topk' is taken by TopK"),
    ],
)
def test_what_cannot_be_registered(kind: Any, error: type[Exception], message: str, registries: None) -> None:
    with pytest.raises(error, match=message):
        docom.register(kind)


# Captured steps


@dataclass(frozen=True)
class EveryOther(docom.DSGD):
    """Takes half the steps only, by their number."""

    name: ClassVar[str] = "every-other"

    def advance(self, state: State, channels: Channels, hyper: Hyper) -> None:
        if hyper.t % 2:
            state.x.copy_(channels["model"].mix(state.x))
            state.points = (state.x,)
        else:
            super().advance(state, channels, hyper)


def looks(algorithm: docom.Algorithm) -> bool:
    training = Experiment(least_squares(), algorithm).begin()
    training.take_step()
    return training.looks_at_t


def test_a_method_that_looks_at_the_number_of_its_step_is_not_captured() -> None:
    """Replayed, it would see the same number for ever. Of the library's only the one that sends another part in every step."""
    assert looks(EveryOther(lr=0.1))
    looking = {name for name, kind in docom.ALGORITHMS.items() if looks(kind(lr=0.01))}  # type: ignore[call-arg]
    assert looking == {"streaming-diloco"}
    assert not looks(docom.StreamingDiLoCo(fragments=1))
    sizes = StepSizes(docom.DSGD(lr="inverse-sqrt:0.1"), torch.device("cpu"))  # type: ignore[arg-type]
    sizes.provide(5)
    counter = torch.tensor(5)
    captured = sizes.at(counter, 5)
    assert float(captured.lr) == docom.DSGD(lr="inverse-sqrt:0.1").hyper(5).lr  # type: ignore[arg-type]
    assert not captured.first
    with pytest.raises(StepNumberRead, match=r"hyper\.t.*captured"):
        captured.t  # noqa: B018


def test_a_new_method_of_the_package_is_found_at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(docom.DSGD):
        pass

    monkeypatch.setattr(docom.algorithms, "Fresh", Fresh, raising=False)
    assert docom.Fresh is Fresh
    monkeypatch.delitem(vars(docom), "Fresh")
    with pytest.raises(AttributeError, match="docom has no 'Nothing'"):
        docom.Nothing  # noqa: B018


# What a method survives


def test_methods_declare_known_conditions_and_settings_they_have() -> None:
    for method in docom.ALGORITHMS.values():
        standing.check_stands(method)
    with pytest.raises(TypeError, match="did you mean 'changing'"):
        standing.check_stands(type("Wrong", (OwnNames,), {"stands": {"chainging": {}}}))
    with pytest.raises(TypeError, match="did you mean 'mix'"):
        standing.check_stands(type("Wrong", (OwnNames,), {"stands": {"changing": {"mixx": 1}}}))


def test_a_condition_may_need_a_setting() -> None:
    assert not survives(docom.LED(), CHANGING)
    assert survives(docom.LED(mixing="lazy"), CHANGING)
    assert not survives(OwnNames(eta=0.1), CHANGING)
    with pytest.raises(ValueError, match="unknown condition"):
        survives(docom.LED(), "rain")


def test_a_refusal_names_the_setting_and_the_methods_that_survive() -> None:
    with pytest.raises(
        ValueError, match=r"use led with mixing='lazy', or take one of docom, .*proxskip \(mixing=0.5\)"
    ):
        docom.algorithms.require(docom.LED(), CHANGING)
    with pytest.raises(
        ValueError, match=r"own-names does not say .* from round to round; take one of .*led \(mixing='lazy'\)"
    ):
        docom.algorithms.require(OwnNames(eta=0.1), CHANGING)
    docom.algorithms.require(docom.DoCoM(lr=0.1), CHANGING)
