"""Data as users have them: numpy arrays and pandas frames are tensors, what is neither is refused in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import docom
from docom.names import nearest
from docom.problems import MLP, LeastSquares, LogisticRegression, ModuleProblem

X = np.random.default_rng(0).normal(size=(3, 8, 4))
Y = np.tile([0, 1], 4)
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "tensor": torch.from_numpy,
    "numpy": lambda array: array,
    "int32": lambda array: array if array.dtype.kind == "f" else array.astype(np.int32),
    "read only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "pandas": lambda array: pd.DataFrame(array) if array.ndim == 2 else pd.Series(array, index=range(5, 13)),
    "lists": lambda array: array.tolist(),
}


def classifier(data: list[Any]) -> ModuleProblem:
    torch.manual_seed(0)
    return ModuleProblem(nn.Linear(4, 2), data, test=data[0])


PROBLEMS: dict[str, Callable[[list[Any]], Any]] = {
    "module": classifier,
    "logistic": lambda data: LogisticRegression(data, test=data[0]),
    "mlp": lambda data: MLP(data, hidden=3, classes=2, test=data[0]),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_arrays_and_frames_are_tensors(kind: str) -> None:
    def models(form: Callable[[np.ndarray], Any]) -> Tensor:
        problem = PROBLEMS[kind]([(form(x), form(Y)) for x in X])
        return docom.simulate(problem, docom.DSGD(lr=0.1), steps=3, batch_size=2, dtype=torch.float64).x

    usual = models(FORMS["tensor"])
    for form in FORMS.values():
        assert torch.allclose(models(form), usual, atol=1e-6), "lists hold what tolist() has kept"


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(X[0] + 1j, Y)], "inputs of agent 0 must be real numbers, got complex ones"),
        ([(torch.ones(8, 4, dtype=torch.complex64), Y)], "inputs of agent 0 must be real numbers, got complex ones"),
        ([(X[0], Y), ([["a", "b"]], [0])], "inputs of agent 1 must be numbers"),
        ([(pd.DataFrame({"age": [1, 2], "site": ["a", "b"]}), [0, 1])], "(columns age, site)"),
        ([([[1.0], [1.0, 2.0]], [0, 1])], "inputs of agent 0 must be numbers in equally long rows"),
        (pd.DataFrame(X[0]), "got a DataFrame; split it by a column"),
        (X[0], "data is one (inputs, targets) pair per agent"),
        ([X[0]], "data is one (inputs, targets) pair per agent"),
    ],
)
def test_what_is_no_data_is_refused_in_plain_words(kind: str, data: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        PROBLEMS[kind](data)


def test_complex_least_squares_are_refused() -> None:
    with pytest.raises(
        TypeError, match="A must be real numbers, got complex ones, whose imaginary parts would be lost"
    ):
        LeastSquares(X + 1j, np.ones((3, 8)))


def test_a_module_fed_the_wrong_number_of_features_says_so() -> None:
    problem = ModuleProblem(nn.Linear(5, 2), [(x, Y) for x in X])
    with pytest.raises(ValueError, match=r"the module fails on samples of shape \[4\]"):
        docom.simulate(problem, docom.DSGD(lr=0.1), steps=1, batch_size=2)


def test_names_from_elsewhere_are_understood() -> None:
    assert "did you mean 'cuda'" in str(nearest("device", "gpu", ("cpu", "cuda")))
    assert "did you mean 'cuda'" in str(nearest("device", "cude", ("cpu", "cuda")))
