"""The kernels compiled by numba for CPU rows: same results as `plain`, with fewer passes over memory.

Rows are distributed over threads and never split: the bits of a row do not depend on the number of threads.
"""

from __future__ import annotations

from docom.numerics.compiled.combination import combine, combine_in_turn
from docom.numerics.compiled.mixing import add_selected, add_sparse, mix, mix_sparse
from docom.numerics.compiled.products import orthonormalise, product, product_transposed
from docom.numerics.compiled.quantisation import add_quantised, dequantise, quantise
from docom.numerics.compiled.selection import select_top
from docom.numerics.compiled.sums import nonfinite_rows, sum_absolute, sum_squares

__all__ = [
    "add_quantised",
    "add_selected",
    "add_sparse",
    "combine",
    "combine_in_turn",
    "dequantise",
    "mix",
    "mix_sparse",
    "nonfinite_rows",
    "orthonormalise",
    "product",
    "product_transposed",
    "quantise",
    "select_top",
    "sum_absolute",
    "sum_squares",
]
