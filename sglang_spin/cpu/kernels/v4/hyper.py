"""Manifold-constrained hyper-connections: the mixing weights of the residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty

if TYPE_CHECKING:
    from torch import Tensor

POST_RANGE = 2.0  # sublayer outputs are weighted between 0 and 2


def mixing_weights(
    mixes: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse, expand and mix weights of n streams from their projections.

    mixes f32 [tokens, (2 + n) * n]; scale f32 [3]; base f32 [(2 + n) * n]. Returns pre [tokens, n],
    post [tokens, n] and comb [tokens, n, n], whose columns sum to 1 and rows nearly so: Sinkhorn's
    alternating normalisation, columns last.
    """
    tokens = mixes.shape[0]
    raw = mixes.float() * scale.float().repeat_interleave(
        torch.tensor([streams, streams, streams * streams])
    )
    raw += base.float()
    pre = torch.sigmoid(raw[:, :streams]) + eps
    post = POST_RANGE * torch.sigmoid(raw[:, streams : 2 * streams])
    comb = raw[:, 2 * streams :].reshape(tokens, streams, streams).softmax(-1)
    comb = (comb + eps).contiguous()
    _sinkhorn(comb.numpy(), iterations, np.float32(eps))
    return pre, post, comb


@njit(ty.VOID(ty.F32_3, ty.I64, ty.F32), parallel=True, cache=True, boundscheck=False)
def _sinkhorn(comb, iterations, eps):  # type: ignore[no-untyped-def]
    n = comb.shape[1]
    for t in prange(comb.shape[0]):
        for iteration in range(iterations):
            if iteration:
                for i in range(n):
                    total = np.float32(0.0)
                    for j in range(n):
                        total += comb[t, i, j]
                    for j in range(n):
                        comb[t, i, j] /= total + eps
            for j in range(n):
                total = np.float32(0.0)
                for i in range(n):
                    total += comb[t, i, j]
                for i in range(n):
                    comb[t, i, j] /= total + eps
