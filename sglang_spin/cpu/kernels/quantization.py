"""Block quantisation to float8_e4m3fn, as SGLang's act_quant does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.vector import LANES, bits_of, float_of
from sglang_spin.cpu.kernels.vector_fp8 import FP8_MAX, encode_fp8, largest_magnitude

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST = np.float32(1e-4)  # upstream's floor for a block's largest value
BLOCKS = 64  # blocks a thread takes at a time
FEW = 1 << 16  # values that one thread rounds sooner than two can be woken

_INVERSE = np.float32(1.0 / FP8_MAX)
_SIGNATURE = ty.VOID(ty.F32_2, ty.U8_2, ty.F32_1, ty.BOOL)


def quantize_blocks(x: Tensor, block: int, power_of_two: bool) -> tuple[Tensor, Tensor]:
    """Scale each run of `block` values to the fp8 range and round.

    x [..., n * block], block a multiple of 16. Returns float8_e4m3fn of x's shape and f32 scales
    [..., n]; with power_of_two the scales are rounded up to powers of two. Rounds to nearest even,
    saturates.
    """
    source = x.float().contiguous()
    values = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty((*x.shape[:-1], x.shape[-1] // block), dtype=torch.float32)
    kernel = _quantize_few if source.numel() <= FEW else _quantize_many
    kernel(
        source.view(-1, block).numpy(),
        values.view(-1, block).numpy(),
        scales.view(-1).numpy(),
        power_of_two,
    )
    return values.view(torch.float8_e4m3fn), scales


@njit(inline="always")
def _quantize_range(source, values, scales, power_of_two, first, last):  # type: ignore[no-untyped-def]
    block = source.shape[1]
    for b in range(first, last):
        start = source.ctypes.data + b * block * 4
        scale = max(largest_magnitude(start, block // LANES), SMALLEST) * _INVERSE
        if power_of_two:
            # a mantissa other than 1.0 moves up to the next exponent
            scale = float_of(np.uint32((bits_of(scale) + 0x7FFFFF) & 0xFF800000))
        scales[b] = scale
        for i in range(0, block, LANES):
            encode_fp8(start + i * 4, values.ctypes.data + b * block + i, scale)


@njit(_SIGNATURE, cache=True, boundscheck=False)
def _quantize_few(source, values, scales, power_of_two):  # type: ignore[no-untyped-def]
    _quantize_range(source, values, scales, power_of_two, 0, source.shape[0])


@njit(_SIGNATURE, parallel=True, cache=True, boundscheck=False)
def _quantize_many(source, values, scales, power_of_two):  # type: ignore[no-untyped-def]
    count = source.shape[0]
    for piece in prange((count + BLOCKS - 1) // BLOCKS):
        last = min((piece + 1) * BLOCKS, count)
        _quantize_range(source, values, scales, power_of_two, piece * BLOCKS, last)
