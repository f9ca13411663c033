"""`docom theory` end to end: every number it is asked for, measured constants, figure, without torch where not needed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from docom.cli.app import app
from docom.cli.theory_command import Question, answer
from docom.compressors import Stamp, parse
from docom.layout import Layout
from docom.rng import Key
from docom.theory import Constants, contraction, horizon_to_epsilon, schedule, trade_off
from docom.theory.figures import term_curves

RING = Constants(n=8, rho=0.195, omega_bar=4 / 3, delta=0.2, L=1.0, sigma=1.0, Delta0=1.0, Gbar0=1.0)
SPECS = ["none", "topk:0.01", "topk:0.3", "randk:0.05", "quantize:1", "quantize:4", "quantize:8", "sign"]


def called(*arguments: Any) -> str:
    outcome = CliRunner().invoke(app, ["theory", *map(str, arguments)])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("d", [30, 2000])
def test_contractions_by_formula_are_those_of_the_compressors(spec: str, d: int) -> None:
    known = contraction(spec, d)
    bound = parse(spec).bind(Layout.flat(d), torch.float64)
    assert known is not None
    assert (known.delta, known.bits) == (pytest.approx(bound.delta), bound.bits)
    x = torch.randn(200, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stamp = Stamp(Key(0, 0), torch.arange(200), 0)
    kept = bound.decompress(bound.compress(x, None, stamp, bound.memory(stamp.agents)), stamp)
    seen = 1 - float(((x - kept) ** 2).sum() / (x**2).sum())
    assert known.observed == pytest.approx(seen, rel=0.02 if d > 100 else 0.12)
    assert known.observed >= known.delta * (1 - 1e-9)


@pytest.mark.parametrize("spec", ["topk:0.1,values=4", "lowrank:2", "sign:3", "quantize:99", "topk:x"])
def test_other_spellings_are_left_to_the_compressors(spec: str) -> None:
    assert contraction(spec, 100) is None


def test_bits_to_epsilon_are_steps_times_messages_and_fall_with_rho() -> None:
    trades = trade_off(RING, 1000, 0.05)
    assert {t.topology for t in trades} >= {"ring", "complete"}
    for trade in trades:
        here = replace(
            RING, rho=min(1.0, trade.rho), omega_bar=1.0 if trade.rho >= 1 else RING.omega_bar, delta=trade.delta
        )
        assert trade.steps == pytest.approx(max(1.0, *horizon_to_epsilon(here, 0.05).values()))
        kept = contraction(trade.compressor, 1000)
        assert kept is not None
        assert trade.bits == pytest.approx(2 * kept.bits * trade.steps)
    ring = {t.compressor: t.bits for t in trades if t.topology == "ring"}
    complete = {t.compressor: t.bits for t in trades if t.topology == "complete"}
    assert all(ring[spec] > complete[spec] for spec in ring)


@pytest.mark.parametrize("name", ["A", "feasible"])
def test_curves_end_where_the_network_no_longer_dominates(name: str) -> None:
    horizons, curves = term_curves(RING, name)
    last = {term: values[-1] for term, values in curves.items()}
    assert max(last, key=lambda term: last[term]) in ("initial_gap", "gradient_noise", "initial_batch")
    assert curves["network_noise"][0] == max(values[0] for values in curves.values())
    assert schedule(name, RING, horizons[-1]).beta < 1


def test_every_number_of_the_calculator_is_in_its_json() -> None:
    found = json.loads(
        called("--topology", "ring", "--agents", 8, "--compressor", "topk:0.2", "--dimension", 100, "--L", 2,
               "--sigma", 0.5, "--mu", 0.1, "--Delta0", 3, "--Gbar0", 4, "--T", 1e5, "--json")
    )  # fmt: skip
    assert found["constants"] | {"L": 2, "sigma": 0.5, "mu": 0.1, "Delta0": 3, "Gbar0": 4, "n": 8} == found["constants"]
    for key in ("rho", "omega_bar", "delta", "delta_observed", "gamma_inf", "eta_inf", "beta_bar", "beta_tilde", "C_sigma",
                "C_gbar", "bound", "pl_bound", "beta_one_bound", "transient_time", "schedules", "sample_complexity",
                "complexity_table", "trade_off"):  # fmt: skip
        assert found[key] is not None, key
    assert found["delta"] < found["delta_observed"]
    assert sum(c["binds"] for c in found["conditions"] if c["group"] == "theorem" and c["variable"] == "eta") == 1
    assert {"A", "B", "C", "PL", "PL-balanced", "feasible"} == set(found["schedules"])


def test_given_steps_are_judged_and_a_preset_s_own_beside_them() -> None:
    found, _, _ = answer(Question("synthetic", lr=1e-15, gamma=1e-6, beta=0.1))
    assert found["bound"]["guaranteed"]
    own = found["preset_steps"]
    assert (own["eta"], own["gamma"], own["beta"]) == (0.01, 0.2, 0.01)
    assert any(not condition["satisfied"] for condition in own["conditions"])


def test_the_table_for_people_has_every_section(tmp_path: Path) -> None:
    text = called("synthetic", "--mu", "0.001", "--all", "--plot", tmp_path / "bound.png")
    sections = (
        "constants", "step conditions", "bound, theorem", "bound, PL", "bound, beta = 1", "transient time", "schedules",
        "samples per agent", "cost per step", "bits sent per agent", "own steps", "delta_observed",
    )  # fmt: skip
    for section in sections:
        assert section in text, section
    assert (tmp_path / "bound.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [(), ("synthetic", "--mu", "0.001"), ("mnist", "--lr", "0.1", "--printed")])
def test_what_is_shown_unasked_fits_a_screen(arguments: tuple[str, ...]) -> None:
    lines = called(*arguments).splitlines()
    assert 20 <= len(lines) <= 40
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for word in ("rho", "delta", "gamma", "eta", "beta", "guaranteed", "transient", "feasible", "DoCoM", "--all"):
        assert word in text, word


def test_measured_constants_enter_the_calculator() -> None:
    found, _, constants = answer(Question("synthetic", agents=4, measure=True))
    measured = found["measured"]
    assert constants.L == measured["L"] > 1
    assert constants.sigma == measured["sigma"] > 0
    assert (constants.Delta0, constants.Gbar0) == (measured["loss"], measured["gradients"])
    assert found["delta"] < found["delta_observed"] < 1
    rows = {row["method"]: row for row in found["sample_complexity"]}
    assert rows["DSGD"]["missing"] == rows["CHOCO-SGD"]["missing"] == []
    given, _, _ = answer(Question("synthetic", agents=4, measure=True, L=7.0, Delta0=2.0))
    assert (given["constants"]["L"], given["constants"]["Delta0"]) == (7.0, 2.0)


def test_measuring_needs_a_problem() -> None:
    outcome = CliRunner().invoke(app, ["theory", "--measure"])
    assert isinstance(outcome.exception, ValueError)
    assert "name one" in str(outcome.exception)


def test_the_calculator_does_without_torch_and_pandas() -> None:
    """They take seconds to load; the answer itself is there in a fraction of one."""
    program = (
        "import sys; from docom.cli.theory_command import Question, answer; answer(Question('synthetic'));"
        "answer(Question(topology='ring', agents=8, delta=0.2));"
        "print([name for name in ('torch', 'numba', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_flags_reach_the_calculator() -> None:
    text = called(
        "mnist", "--lr", 0.1, "--gamma", 0.2, "--beta", 0.3, "--epsilon", 0.5, "--printed", "--T", 10, "--json"
    )
    found = json.loads(text)
    assert found["form"] == "printed"
    assert found["T"] == 10
    assert found["steps"] | {"eta": 0.1, "gamma": 0.2, "beta": 0.3, "schedule": "A"} == found["steps"]
    assert found["sample_complexity"][0]["epsilon"] == 0.5
    assert json.loads(called("--schedule", "B", "--json"))["steps"]["schedule"] == "B"
