"""Walsh-Hadamard transform along the last dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.vector_hadamard import POINTS, hadamard_row

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 64  # rows a thread takes at a time
FEW = 512  # rows that one thread transforms sooner than two can be woken

_SIGNATURE = ty.VOID(ty.F32_2, ty.F32_2, ty.F32)


def hadamard(x: Tensor, scale: float = 1.0) -> Tensor:
    """x [..., 128] times the Hadamard matrix (Sylvester order) times `scale`.

    Computed in fp32 butterflies, so a row's result does not depend on the other rows. Returns
    x.dtype. Raises ValueError for another last dimension.
    """
    if x.shape[-1] != POINTS:
        raise ValueError(f"hadamard: the last dimension must be {POINTS}, got {x.shape[-1]}")
    source = x.float().contiguous()
    out = torch.empty_like(source)
    kernel = _transform_few if source.numel() <= FEW * POINTS else _transform_many
    kernel(source.view(-1, POINTS).numpy(), out.view(-1, POINTS).numpy(), np.float32(scale))
    return out.to(x.dtype)


@njit(inline="always")
def _transform_rows(source, out, scale, first, last):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        shift = r * POINTS * 4
        hadamard_row(source.ctypes.data + shift, out.ctypes.data + shift, scale)


@njit(_SIGNATURE, cache=True, boundscheck=False)
def _transform_few(source, out, scale):  # type: ignore[no-untyped-def]
    _transform_rows(source, out, scale, 0, source.shape[0])


@njit(_SIGNATURE, parallel=True, cache=True, boundscheck=False)
def _transform_many(source, out, scale):  # type: ignore[no-untyped-def]
    rows = source.shape[0]
    for piece in prange((rows + ROWS - 1) // ROWS):
        _transform_rows(source, out, scale, piece * ROWS, min((piece + 1) * ROWS, rows))
