"""The softmax of one query's scores."""

from __future__ import annotations

import numpy as np
from numba import njit

from sglang_spin.cpu.kernels import types as ty

NO_SINK = np.float32(-np.inf)


@njit(ty.VOID(ty.F32_1, ty.F32, ty.F32), cache=True, boundscheck=False)
def softmax(row, scale, sink):  # type: ignore[no-untyped-def]
    """In place, of row * scale; the sink takes a share of its own and is not returned."""
    top = sink
    for i in range(row.shape[0]):
        row[i] *= scale
        top = max(top, row[i])
    total = np.exp(sink - top)
    for i in range(row.shape[0]):
        row[i] = np.exp(row[i] - top)
        total += row[i]
    for i in range(row.shape[0]):
        row[i] /= total
