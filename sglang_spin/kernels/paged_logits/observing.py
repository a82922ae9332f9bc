"""Scoring and observing in one launch: the scorer puts the block maxima into the history."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.implementation import Impl
from sglang_spin.kernels.paged_logits.api import paged_logits
from sglang_spin.kernels.paged_logits.operands import Placement


def observed_logits(
    state: SpinState,
    layer: int,
    q: Tensor,
    cache: Tensor,
    weights: Tensor,
    plan: Plan,
    *,
    first: int = 0,
    q_scales: Tensor | None = None,
    out: Tensor | None = None,
    impl: Impl | None = None,
) -> Tensor:
    """Score the kept blocks of one indexer layer (0-based) and stash their maxima.

    Leaves the state as `observe` would after `paged_logits`, without reading the logits again. Rows
    first .. first + n - 1 of the plan are scored, n being the rows of q; other operands and the
    result are those of `paged_logits`. Raises ValueError on bad operands, and for a state without
    block maxima (spin-paper).
    """
    if not isinstance(state.history, BlockHistory):
        raise ValueError("spin-paper keeps every score, not block maxima: use observe")
    if not 0 <= layer < plan.pages.shape[0]:
        raise ValueError(f"layer must be 0 to {plan.pages.shape[0] - 1}, got {layer}")
    rows = slice(first, first + q.shape[0])
    if not 0 <= first <= first + q.shape[0] <= plan.pages.shape[1]:
        raise ValueError(f"the plan has {plan.pages.shape[1]} rows, asked for {rows}")
    return paged_logits(
        q,
        cache,
        weights,
        plan.lengths[layer, rows],
        plan.pages[layer, rows],
        q_scales=q_scales,
        out=out,
        maxima=state.history.recent[layer].view(torch.float32),
        placement=Placement(plan.request_rows[rows], plan.blocks[layer, rows]),
        impl=impl,
    )
