"""Block-sparse paged index scores, with block maxima from the same pass on request."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.kernels.implementation import Impl, resolve
from sglang_spin.kernels.paged_logits import reference
from sglang_spin.kernels.paged_logits.operands import Operands, Placement


def paged_logits(
    q: Tensor,
    cache: Tensor,
    weights: Tensor,
    lengths: Tensor,
    page_table: Tensor,
    *,
    q_scales: Tensor | None = None,
    out: Tensor | None = None,
    maxima: Tensor | None = None,
    placement: Placement | None = None,
    impl: Impl | None = None,
) -> Tensor:
    """Index scores of the entries that each row's page table names, from the paged cache.

    logits[r, j] = k_scale(j) * sum_h weights[r, h] * relu(q[r, h] . k(j)) for j < lengths[r];
    k(j) is entry j % 64 of page `page_table[r // next_n, j // 64]`, next_n = rows / tables (1-5).
    FP8 pages: cache uint8 [pages, 64 * 132] (any stride between pages), q float8_e4m3fn
    [rows, heads, 128]. FP4 pages: cache uint8 [pages, 64 * 68], q uint8 [rows, heads, 64] of packed
    e2m1 with q_scales uint8 [rows, heads, 4] ue8m0, and k_scale = 1: the scales are in q and k.
    weights fp32 [rows, heads], heads 16, 32 or 64; lengths int32 [rows], 0 allowed; page_table
    int32 [tables, blocks], read only as far as the lengths reach.

    Returns `out`, fp32 [rows, width], allocated with width = 64 * blocks if not given. Nothing is
    written past a row's length, nor past `width` or the table where a length exceeds them.
    maxima: fp32 [rows, >= blocks] receives the largest logit of each block, SUSPECT where a logit
    is NaN or the maximum not within SCORE_LIMIT; blocks past the length are not written. With a
    placement, maxima is fp32 [any, any] and block j of row r goes where the placement says.
    impl: None takes triton for CUDA tensors, else the reference. Raises ValueError on bad operands.
    """
    if out is None:
        width = page_table.shape[-1] * BLOCK
        out = torch.empty((q.shape[0], width), dtype=torch.float32, device=q.device)
    args = Operands(q, q_scales, cache, weights, lengths, page_table, out, maxima, placement)
    if resolve(impl, q.device) == "reference":
        reference.score(args)
        return out
    # Triton is absent on machines that only ever use the reference
    from sglang_spin.kernels.paged_logits import triton

    triton.score(args)
    return out
