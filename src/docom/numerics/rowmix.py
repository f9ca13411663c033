"""A sparse matrix that combines rows, stored so that all kernels traverse it in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RowMix:
    """Row i of the result is ``sum_k weights[k] rows[sources[k]]`` for k from ``offsets[i]`` to ``offsets[i+1]``.

    Sources ascend within a row of the matrix, which fixes the order of the sum.
    """

    offsets: np.ndarray
    sources: np.ndarray
    weights: np.ndarray

    @staticmethod
    def from_dense(matrix: np.ndarray) -> RowMix:
        """The non-zero entries of a dense ``[rows out, rows in]`` matrix."""
        rows, sources = np.nonzero(matrix)
        offsets = np.searchsorted(rows, np.arange(matrix.shape[0] + 1))
        return RowMix(offsets.astype(np.int64), sources.astype(np.int64), matrix[rows, sources].astype(np.float64))

    @cached_property
    def slots(self) -> tuple[Tensor, Tensor]:
        """The same matrix padded to equally many entries per row: sources and weights ``[rows out, slots]``.

        The padding points at row 0 with weight 0 and comes last, so it leaves the ordered sum as it is.
        """
        lengths = np.diff(self.offsets)
        width = int(lengths.max(initial=0))
        sources = np.zeros((len(lengths), width), dtype=np.int64)
        weights = np.zeros((len(lengths), width))
        for row, (start, length) in enumerate(zip(self.offsets[:-1], lengths, strict=True)):
            sources[row, :length] = self.sources[start : start + length]
            weights[row, :length] = self.weights[start : start + length]
        return torch.from_numpy(sources), torch.from_numpy(weights)

    @cached_property
    def _copies(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def slots_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`slots` on a device, copied there once."""
        if device not in self._copies:
            sources, weights = self.slots
            self._copies[device] = sources.to(device), weights.to(device)
        return self._copies[device]
