"""The kernels in Triton, for rows on a GPU.

Operations for which a kernel pays have one here; the others use `plain`. Nothing waits for the host: the number of the step is
a counter on the device, and rows that hold a NaN or an infinity are noted in ``flags`` (the first such step of each row), to be
read later. So a whole step can be captured in a CUDA graph. The same source runs on a CPU under Triton's interpreter; this is
how `tests/test_numerics_gpu.py` compares it with `plain`.
"""

from __future__ import annotations

from docom.numerics.gpu.binning import bin_means, means_of_bins
from docom.numerics.gpu.combination import combine, combine_in_turn
from docom.numerics.gpu.mixing import mix, note_nonfinite
from docom.numerics.gpu.packing import pack_codes, unpack_codes
from docom.numerics.gpu.quantisation import update_quantised
from docom.numerics.gpu.selection import update_top
from docom.numerics.gpu.sparse import add_selected, add_sparse, mix_sparse, select_top, sum_entries, sum_squares
from docom.numerics.plain import (
    add_quantised,
    dequantise,
    nonfinite_rows,
    orthonormalise,
    product,
    product_transposed,
    quantise,
    sum_absolute,
)

__all__ = [
    "add_quantised",
    "add_selected",
    "add_sparse",
    "bin_means",
    "combine",
    "combine_in_turn",
    "dequantise",
    "means_of_bins",
    "mix",
    "mix_sparse",
    "nonfinite_rows",
    "note_nonfinite",
    "orthonormalise",
    "pack_codes",
    "product",
    "product_transposed",
    "quantise",
    "select_top",
    "sum_absolute",
    "sum_entries",
    "sum_squares",
    "unpack_codes",
    "update_quantised",
    "update_top",
]
