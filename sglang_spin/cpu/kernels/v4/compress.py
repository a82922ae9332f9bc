"""Merging a window of tokens into one entry: a softmax over the window, channel by channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.v4.compress_plan import OVERLAPPING

if TYPE_CHECKING:
    from torch import Tensor

_SIGNATURE = ty.VOID(ty.F32_2S, ty.F32_2S, ty.F32_2, ty.I32_2, ty.I64, ty.BOOL, ty.F32_2)


def merge_windows(ring: Tensor, tokens: Tensor, bias: Tensor, plan: Tensor, ratio: int) -> Tensor:
    """Merge the windows that `plan` names, from this forward's tokens and the ring.

    ring f32 [slots, width] and tokens f32 [n, width]: values, then gates; with overlap each in two
    series of `dim`, first the one for the following window. bias f32 [window, dim] is added to the
    gates. plan int32 [m, 4] as compress_plan makes it for prefill. Returns f32 [m, dim].
    """
    out = torch.empty((plan.shape[0], bias.shape[-1]), dtype=torch.float32)
    _merge(
        ring.numpy(),
        tokens.numpy(),
        bias.float().contiguous().numpy(),
        plan.contiguous().numpy(),
        ratio,
        ratio == OVERLAPPING,
        out.numpy(),
    )
    return out


@njit(inline="always")
def _row(ring, tokens, page, ratio, offset, token, from_ring):  # type: ignore[no-untyped-def]
    return ring[page * ratio + offset] if from_ring else tokens[token]


@njit(_SIGNATURE, parallel=True, cache=True, boundscheck=False, error_model="numpy")
def _merge(ring, tokens, bias, plan, ratio, overlapping, out):  # type: ignore[no-untyped-def]
    window, dim = bias.shape
    series = 2 if overlapping else 1
    for m in prange(plan.shape[0]):
        token, in_ring = plan[m, 1] & 0xFFFF, plan[m, 1] >> 16
        # the first window of a request has nothing before it
        begin = ratio if overlapping and plan[m, 0] <= ratio else 0
        top = np.full(dim, np.float32(-np.inf), np.float32)
        gates = np.empty((window, dim), np.float32)
        for j in range(begin, window):
            half = j // ratio if overlapping else 1
            page = plan[m, 2 + half]
            row = _row(ring, tokens, page, ratio, j % ratio, token - window + 1 + j, j < in_ring)
            shift = (series + (half if overlapping else 0)) * dim
            for d in range(dim):
                gates[j, d] = row[shift + d] + bias[j, d]
                top[d] = max(top[d], gates[j, d])
        total = np.zeros(dim, np.float32)
        result = np.zeros(dim, np.float32)
        for j in range(begin, window):
            half = j // ratio if overlapping else 1
            page = plan[m, 2 + half]
            row = _row(ring, tokens, page, ratio, j % ratio, token - window + 1 + j, j < in_ring)
            shift = half * dim if overlapping else 0
            for d in range(dim):
                weight = np.exp(gates[j, d] - top[d])
                total[d] += weight
                result[d] += weight * row[shift + d]
        for d in range(dim):
            out[m, d] = result[d] / total[d]
