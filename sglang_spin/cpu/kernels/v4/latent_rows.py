"""V4's cache row of 584 bytes: 448 fp8 values, 64 bf16 values, 7 scale exponents and a pad byte.

A page of n rows holds the n value parts (576 bytes each), then the n scale parts (8 bytes each);
pages may be padded, so they come as a two-dimensional view with the page's stride.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.quantization import quantize_blocks
from sglang_spin.cpu.kernels.vector import bits_of, float_of
from sglang_spin.cpu.kernels.vector_fp8 import decode_fp8

if TYPE_CHECKING:
    from torch import Tensor

DIM, NOPE, GROUP = 512, 448, 64  # values of a row; those in fp8; values sharing a scale
GROUPS = NOPE // GROUP
VALUE_BYTES = NOPE + 2 * (DIM - NOPE)
SCALE_BYTES = 8
ROW_BYTES = VALUE_BYTES + SCALE_BYTES
FP8_DIGITS = 8  # decode_fp8 returns values times 2**-8
MANTISSA_BITS = 23


def write_rows(pages: Tensor, slots: Tensor, rows: Tensor, page_size: int) -> None:
    """Store rows f32 [n, 512] at slots int [n] of pages uint8 [pages, >= page_size * 584]."""
    values, scales = quantize_blocks(rows[:, :NOPE], GROUP, power_of_two=True)
    exponents = torch.zeros((rows.shape[0], SCALE_BYTES), dtype=torch.uint8)
    # the bits of a power of two, without its (empty) mantissa, are its biased exponent
    exponents[:, :GROUPS] = scales.view(torch.int32) >> MANTISSA_BITS
    rope = rows[:, NOPE:].bfloat16().contiguous().view(torch.uint8)
    page, entry = slots.long() // page_size, slots.long() % page_size
    split, end = page_size * VALUE_BYTES, page_size * ROW_BYTES
    parts = pages[:, :split].view(-1, page_size, VALUE_BYTES)
    parts[page, entry] = torch.cat([values.view(torch.uint8), rope], -1)
    pages[:, split:end].view(-1, page_size, SCALE_BYTES)[page, entry] = exponents


def read_rows(pages: Tensor, slots: Tensor, page_size: int) -> Tensor:
    """The rows at slots int32 [n], as bf16 [n, 512]: exact, fp8 has fewer digits than bf16."""
    out = torch.empty((slots.shape[0], DIM), dtype=torch.bfloat16)
    _read(pages.numpy(), slots.numpy(), page_size, out.view(torch.uint16).numpy())
    return out


@njit(ty.VOID(ty.U8_2S, ty.I32_1, ty.I64, ty.U16_2), parallel=True, cache=True, boundscheck=False)
def _read(pages, slots, page_size, out):  # type: ignore[no-untyped-def]
    for n in prange(slots.shape[0]):
        page, entry = slots[n] // page_size, slots[n] % page_size
        start = pages.ctypes.data + page * pages.strides[0] + entry * VALUE_BYTES
        decoded = np.empty(GROUP, np.float32)
        for g in range(GROUPS):
            biased = pages[page, page_size * VALUE_BYTES + entry * SCALE_BYTES + g]
            scale = float_of(np.uint32(biased + FP8_DIGITS) << np.uint32(MANTISSA_BITS))
            for d in range(0, GROUP, 16):
                decode_fp8(start + g * GROUP + d, decoded.ctypes.data + d * 4)
            for d in range(GROUP):
                out[n, g * GROUP + d] = bits_of(decoded[d] * scale) >> np.uint32(16)
        raw = pages[page, entry * VALUE_BYTES + NOPE : (entry + 1) * VALUE_BYTES]
        for d in range(DIM - NOPE):
            out[n, NOPE + d] = np.uint16(raw[2 * d]) | np.uint16(raw[2 * d + 1]) << np.uint16(8)
