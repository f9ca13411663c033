"""The one place that chooses between compiled kernels and plain numpy ones; both give the same bits."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from docom.wire._buffers import Words


class Kernels(Protocol):
    """Loops over bits. The caller has checked the arguments: lengths and ranges are not checked again."""

    def pack_bits(self, values: npt.NDArray[Any], width: int, words: Words) -> None:
        """Write unsigned `values` of `width` bits (1 to 63) back to back into all-zero `words`."""

    def unpack_bits(self, words: Words, width: int, values: npt.NDArray[Any]) -> None:
        """Read into `values` the integers that `pack_bits` wrote."""

    def write_indices(self, indices: npt.NDArray[np.int64], low_width: int, high_bits: int, words: Words) -> None:
        """Write the Elias-Fano code of increasing `indices` into all-zero `words`."""

    def read_indices(self, words: Words, low_width: int, high_bits: int, indices: npt.NDArray[np.int64]) -> int:
        """Read into `indices` and return how many are marked; `indices` are valid only if this equals their number."""

    def pack_signed(self, levels: npt.NDArray[np.int16], width: int, words: Words) -> bool:
        """Write signed `levels` as codes of `width` bits (2 to 16); False, with invalid output, if one does not fit."""

    def unpack_signed(self, words: Words, width: int, levels: npt.NDArray[np.int16]) -> bool:
        """Read into `levels` what `pack_signed` wrote; False if a code means minus zero."""


@functools.cache
def kernels() -> Kernels:
    """The compiled kernels, or the plain ones where numba cannot be imported."""
    try:
        from docom.wire import _kernels
    except ImportError:
        from docom.wire import _plain

        return _plain
    return _kernels
