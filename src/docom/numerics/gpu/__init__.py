"""The kernels in Triton, for rows on a GPU.

What is worth a kernel has one here; the rest is `plain`. Nothing waits for the host: steps come from a counter on the
device, and rows that hold a NaN or an infinity are noted in ``flags`` (the first step of each row) for whoever looks
later. So a whole step can be captured in a CUDA graph. The same source runs on a CPU under Triton's interpreter, which is how
`tests/test_numerics_gpu.py` compares it with `plain`.
"""

from __future__ import annotations

from docom.numerics.gpu.combination import combine, combine_in_turn
from docom.numerics.gpu.mixing import mix, note_nonfinite
from docom.numerics.gpu.quantisation import update_quantised
from docom.numerics.gpu.selection import update_top
from docom.numerics.plain import (
    add_quantised,
    add_selected,
    add_sparse,
    dequantise,
    mix_sparse,
    nonfinite_rows,
    orthonormalise,
    product,
    product_transposed,
    quantise,
    select_top,
    sum_absolute,
    sum_squares,
)

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
    "note_nonfinite",
    "orthonormalise",
    "product",
    "product_transposed",
    "quantise",
    "select_top",
    "sum_absolute",
    "sum_squares",
    "update_quantised",
    "update_top",
]
