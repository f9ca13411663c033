"""Problems: n local objectives, their data, their gradients and their measures."""

from __future__ import annotations

from docom.problems.base import Evaluation, Problem
from docom.problems.leaf import LeafSynthetic
from docom.problems.lenet import LeNet5
from docom.problems.linear import LeastSquares, LinearProblem, LogisticRegression
from docom.problems.mlp import MLP
from docom.problems.module import ModuleProblem
from docom.problems.named import PROBLEMS
from docom.problems.neural import NeuralProblem
from docom.problems.own import LinearRegression, problem_of

__all__ = [
    "MLP",
    "PROBLEMS",
    "Evaluation",
    "LeNet5",
    "LeafSynthetic",
    "LeastSquares",
    "LinearProblem",
    "LinearRegression",
    "LogisticRegression",
    "ModuleProblem",
    "NeuralProblem",
    "Problem",
    "problem_of",
]
