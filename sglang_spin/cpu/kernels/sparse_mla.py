"""Sparse multi-head latent attention: each query attends to its own short list of cache slots.

One kernel serves prefill and decode, so a token's output does not depend on the path that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.softmax import NO_SINK, softmax
from sglang_spin.cpu.kernels.vector_mla import HEADS, STEP, WIDTH, dot_heads, mix_rows

if TYPE_CHECKING:
    from torch import Tensor


def sparse_mla(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    slots: Tensor,
    counts: Tensor,
    scale: float,
) -> Tensor:
    """softmax(scale * (q_latent . c + q_rope . k)) weighted sum of c over the slots of each token.

    q_latent [tokens, heads, d_v], d_v a multiple of 64; q_rope [tokens, heads, d_rope], d_rope a
    multiple of 32; latent_cache bf16 [slots, d_v] and rope_cache bf16 [slots, d_rope], each row
    contiguous; slots int32 [tokens, topk]; counts int32 [tokens]. Only the first counts[t] slots
    are read, and of those the negative ones are left out; a token without slots gets zeros.
    Softmax and sums in fp32. Returns [tokens, heads, d_v] in q_latent.dtype.
    """
    tokens, heads, d_v = q_latent.shape
    padded = -(-heads // HEADS) * HEADS
    queries = torch.zeros((tokens, padded, d_v + q_rope.shape[-1]), dtype=torch.float32)
    queries[:, :heads, :d_v] = q_latent
    queries[:, :heads, d_v:] = q_rope
    out = torch.empty((tokens, padded, d_v), dtype=torch.float32)
    _attend(
        queries.numpy(),
        latent_cache.view(torch.uint16).numpy(),
        rope_cache.view(torch.uint16).numpy(),
        slots.to(torch.int32).contiguous().numpy(),
        counts.to(torch.int32).contiguous().numpy(),
        np.float32(scale),
        out.numpy(),
    )
    return out[:, :heads].to(q_latent.dtype)


@njit(
    ty.VOID(ty.F32_3, ty.U16_2S, ty.U16_2S, ty.I32_2, ty.I32_1, ty.F32, ty.F32_3),
    parallel=True,
    cache=True,
    boundscheck=False,
)
def _attend(queries, latent, rope, slots, counts, scale, out):  # type: ignore[no-untyped-def]
    tokens, heads, width = queries.shape
    d_v, topk = out.shape[2], slots.shape[1]
    for t in prange(tokens):
        rows = np.empty(topk, np.int64)
        ropes = np.empty(topk, np.int64)
        n = 0
        for i in range(counts[t]):
            if slots[t, i] >= 0:
                rows[n] = latent.ctypes.data + np.int64(slots[t, i]) * latent.strides[0]
                ropes[n] = rope.ctypes.data + np.int64(slots[t, i]) * rope.strides[0]
                n += 1
        if n == 0:
            out[t] = 0.0
            continue
        p = np.zeros((HEADS, topk), np.float32)
        for h in range(0, heads, HEADS):
            q = queries.ctypes.data + (t * heads + h) * width * 4
            target = out.ctypes.data + (t * heads + h) * d_v * 4
            p[:] = 0.0
            for i in range(n):
                at = p.ctypes.data + i * 4
                dot_heads(q, width * 4, rows[i], d_v // STEP, at, topk * 4)
                dot_heads(q + d_v * 4, width * 4, ropes[i], (width - d_v) // STEP, at, topk * 4)
            for j in range(HEADS):
                softmax(p[j, :n], scale, NO_SINK)
            for d in range(0, d_v, WIDTH):
                mix_rows(
                    p.ctypes.data, topk * 4, rows.ctypes.data, n, d * 2, target + d * 4, d_v * 4
                )
