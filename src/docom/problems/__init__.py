"""Problems: n local objectives, their data, their gradients and their measures."""

from __future__ import annotations

from docom.problems.base import Evaluation, Problem
from docom.problems.leaf import LeafSynthetic
from docom.problems.linear import LeastSquares, LinearProblem, LogisticRegression
from docom.problems.module import ModuleProblem

__all__ = [
    "Evaluation",
    "LeafSynthetic",
    "LeastSquares",
    "LinearProblem",
    "LogisticRegression",
    "ModuleProblem",
    "Problem",
]
