"""The paper's sample-complexity table (tab:compare) as data that can be evaluated at given constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from docom.theory.constants import Constants, Form, form_of


@dataclass(frozen=True, kw_only=True)
class TableConstants:
    """Constants that only other methods' analyses need; a row whose constant is None leaves that term open.

    Attributes:
        varsigma2: sup over agents and models of |grad f_i - grad f|^2 (DSGD).
        G: sup of E|grad f_i(.; zeta)|^2 (CHOCO-SGD).
        varsigma0: spread of the initial stochastic gradient (DeTAG).
        B: batch size (DeTAG).
        C0, C1: constants its authors leave implicit (GNSD).
    """

    varsigma2: float | None = None
    G: float | None = None
    varsigma0: float | None = None
    B: float | None = None
    C0: float | None = None
    C1: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} must be a finite number, 0 or more, got {value}")


@dataclass(frozen=True)
class Term:
    """One entry of a maximum: text, value at (constants, extra, epsilon), and the extra constants it uses."""

    text: str
    value: Callable[[Constants, Any, float], float]
    needs: tuple[str, ...] = ()
    only: Form | None = None


@dataclass(frozen=True)
class SampleRow:
    """A row of the table: O(max of terms) samples per agent until E|grad f|^2 <= epsilon^2."""

    method: str
    terms: tuple[Term, ...]
    compressed: bool
    remarks: str

    def formula(self, printed: bool = False) -> str:
        """The complexity as text; the first term is the leading one."""
        return f"max{{ {', '.join(term.text for term in self._active(printed))} }}"

    def _active(self, printed: bool) -> list[Term]:
        return [term for term in self.terms if term.only in (None, form_of(printed))]

    def evaluate(
        self, c: Constants, epsilon: float, extra: TableConstants | None = None, printed: bool = False
    ) -> dict[str, Any]:
        """Values of the terms (None where a constant is missing), their maximum, and what is missing."""
        if not epsilon > 0:
            raise ValueError(f"epsilon must be positive, got epsilon={epsilon}")
        extra = extra or TableConstants()
        values: dict[str, float | None] = {}
        missing: list[str] = []
        for term in self._active(printed):
            absent = [name for name in term.needs if getattr(extra, name) is None]
            values[term.text] = None if absent else term.value(c, extra, epsilon)
            missing += absent
        known = {text: value for text, value in values.items() if value is not None}
        return {
            "terms": values,
            "samples": max(known.values()) if known else None,
            "largest": max(known, key=lambda text: known[text]) if known else None,
            "missing": missing,
            "form": form_of(printed),
        }


def _leading(c: Constants, extra: Any, epsilon: float) -> float:
    return c.sigma**2 / (c.n * epsilon**4)


def _leading_reduced(c: Constants, extra: Any, epsilon: float) -> float:
    return c.sigma**3 / (c.n * epsilon**3)


_SAMPLE_ROWS: tuple[SampleRow, ...] = (
    SampleRow(
        "DSGD",
        (
            Term("sigma^2/(n eps^4)", _leading),
            Term(
                "n (sigma^2 + varsigma^2)/(rho^2 eps^2)",
                lambda c, x, e: c.n * (c.sigma**2 + x.varsigma2) / (c.rho * e) ** 2,
                ("varsigma2",),
            ),
        ),
        compressed=False,
        remarks="varsigma^2 = sup |grad f_i - grad f|^2 must be finite: bounded heterogeneity",
    ),
    SampleRow(
        "GNSD",
        (Term("1/(C0^2 C1^2 eps^4)", lambda c, x, e: 1 / (x.C0 * x.C1 * e * e) ** 2, ("C0", "C1")),),
        compressed=False,
        remarks="C0 and C1 are not given explicitly by its authors",
    ),
    SampleRow(
        "DeTAG",
        (
            Term("sigma^2/(n eps^4)", _leading),
            Term(
                "B log(n + varsigma0 n/eps)/(rho^0.5 eps^2)",
                lambda c, x, e: x.B * math.log(c.n + x.varsigma0 * c.n / e) / (math.sqrt(c.rho) * e**2),
                ("B", "varsigma0"),
            ),
        ),
        compressed=False,
        remarks=(
            "varsigma0 is the spread of the initial stochastic gradient, B the batch size; several gossip rounds per step"
        ),
    ),
    SampleRow(
        "GT-HSGD",
        (
            Term("sigma^3/(n eps^3)", _leading_reduced),
            Term("Gbar0/(rho^3 eps^2)", lambda c, x, e: c.Gbar0 / (c.rho**3 * e**2)),
            Term(
                "n^0.5 sigma^1.5/(rho^2.25 eps^1.5)",
                lambda c, x, e: math.sqrt(c.n) * c.sigma**1.5 / (c.rho**2.25 * e**1.5),
            ),
        ),
        compressed=False,
        remarks="mean-square smoothness; two gradients on each sample",
    ),
    SampleRow(
        "CHOCO-SGD",
        (
            Term("sigma^2/(n eps^4)", _leading),
            Term(
                "G/(delta rho^2 eps^3)",
                lambda c, x, e: x.G / (c.delta * c.rho**2 * e**3),
                ("G",),
                only="printed",
            ),
            Term(
                "sqrt(G)/(delta rho^2 eps^3)",
                lambda c, x, e: math.sqrt(x.G) / (c.delta * c.rho**2 * e**3),
                ("G",),
                only="corrected",
            ),
        ),
        compressed=True,
        remarks=(
            "G = sup E|grad f_i(.; zeta)|^2 must be finite: bounded gradients; as a squared norm it enters by its root"
        ),
    ),
    SampleRow(
        "BEER",
        (
            Term(
                "sigma^2/(delta^2 rho^3 eps^4)",
                lambda c, x, e: c.sigma**2 / (c.delta**2 * c.rho**3 * e**4),
            ),
            Term("1/(delta rho^3 eps^2)", lambda c, x, e: 1 / (c.delta * c.rho**3 * e**2)),
        ),
        compressed=True,
        remarks="needs a batch of order sigma^2/(delta eps^2) in every iteration",
    ),
    SampleRow(
        "CEDAS",
        (
            Term("sigma^2/(n eps^4)", _leading),
            Term("n sigma^2/(rho eps^2)", lambda c, x, e: c.n * c.sigma**2 / (c.rho * e**2)),
            Term("n G0/(rho eps)", lambda c, x, e: c.n * c.Gbar0 / (c.rho * e)),
        ),
        compressed=True,
        remarks=("G0 = mean |grad f_i(x0)|^2, taken as Gbar0; unbiased compressors; the row hides their constant"),
    ),
    SampleRow(
        "DoCoM",
        (
            Term("sigma^3/(n eps^3)", _leading_reduced),
            Term(
                "n Gbar0/(delta^2 rho^4 eps^2)",
                lambda c, x, e: c.n * c.Gbar0 / (c.delta**2 * c.rho**4 * e**2),
            ),
            Term(
                "n^1.25 sigma^1.5/(delta^2.25 rho^4.5 eps^1.5)",
                lambda c, x, e: c.n**1.25 * c.sigma**1.5 / (c.delta**2.25 * c.rho**4.5 * e**1.5),
            ),
            Term(
                "(L Delta0)^1.5/(n eps^3)",
                lambda c, x, e: (c.L * c.Delta0) ** 1.5 / (c.n * e**3),
                only="corrected",
            ),
        ),
        compressed=True,
        remarks=(
            "mean-square smoothness; two gradients on each sample; schedule A, whose steps the theorem does not admit"
        ),
    ),
)


def sample_complexity() -> list[SampleRow]:
    """Every row of the paper's sample-complexity table (tab:compare), in its order.

    All rows are orders: numerical factors are dropped and, except in DoCoM's corrected form, L Delta0
    counts as 1.
    """
    return list(_SAMPLE_ROWS)
