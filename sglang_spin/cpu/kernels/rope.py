"""Rotary position embedding from a cos/sin table, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty

if TYPE_CHECKING:
    from torch import Tensor

FEW = 1 << 15  # values that one thread rotates sooner than two can be woken

_SIGNATURE = ty.VOID(ty.F32_3S, ty.F32_2, ty.I64_1, ty.BOOL)


def rotate_(x: Tensor, cos_sin: Tensor, positions: Tensor, neox: bool) -> Tensor:
    """Rotate the leading dimensions of each head in place and return x.

    x [tokens, heads, dim] or [tokens, dim], any strides; cos_sin f32 [max positions, rotary]:
    cosines, then sines; positions int64 [tokens]. neox pairs dimension i with i + rotary / 2,
    otherwise 2i with 2i + 1. Dimensions beyond the table stay. Computed in fp32.
    """
    heads = x if x.dim() == 3 else x.unsqueeze(1)
    values = heads if x.dtype == torch.float32 else heads.float()
    table = cos_sin.float().contiguous().numpy()
    kernel = _rotate_few if x.numel() <= FEW else _rotate_many
    kernel(values.numpy(), table, positions.long().contiguous().numpy(), neox)
    if values is not heads:
        heads.copy_(values)
    return x


@njit(inline="always")
def _rotate_token(x, table, t, neox):  # type: ignore[no-untyped-def]
    half = table.shape[0] // 2
    step, partner = (1, half) if neox else (2, 1)
    for h in range(x.shape[1]):
        for i in range(half):
            a, b = x[t, h, i * step], x[t, h, i * step + partner]
            cos, sin = table[i], table[i + half]
            x[t, h, i * step] = a * cos - b * sin
            x[t, h, i * step + partner] = b * cos + a * sin


@njit(_SIGNATURE, cache=True, boundscheck=False)
def _rotate_few(x, cos_sin, positions, neox):  # type: ignore[no-untyped-def]
    for t in range(x.shape[0]):
        _rotate_token(x, cos_sin[positions[t]], t, neox)


@njit(_SIGNATURE, parallel=True, cache=True, boundscheck=False)
def _rotate_many(x, cos_sin, positions, neox):  # type: ignore[no-untyped-def]
    for t in prange(x.shape[0]):
        _rotate_token(x, cos_sin[positions[t]], t, neox)
