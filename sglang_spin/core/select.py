"""Choosing the kept blocks of a step, and writing them as a compact page table."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FORCED = float("inf")
INVALID = float("-inf")


class Compacted(NamedTuple):
    """Kept blocks in ascending order, one line per layer and row.

    pages: int32 [layers, rows, width], page ids; columns past the kept count repeat the first page.
    blocks: int32 [layers, rows, width], logical block ids of the same columns, 0 past the count.
    """

    pages: Tensor
    blocks: Tensor


def choose(
    scores: Tensor,
    forced: Tensor,
    valid: Tensor,
    budget: Tensor,
    noise: Tensor | None,
    share: float,
) -> Tensor:
    """Keep the forced blocks, then the best scored, `budget` in all; ties go to the lower block.

    scores: fp32 [layers, rows, width]. forced, valid: bool of that shape. budget: int [layers,
    rows], at least the forced and at most the valid blocks. noise: int64 like scores or None;
    with it, floor(share * budget) of the kept blocks are drawn at random from the unchosen instead.
    Returns bool [layers, rows, width] with exactly `budget` True per line.
    """
    width = scores.shape[-1]
    rank = torch.arange(width, device=scores.device)
    keys = scores.masked_fill(forced, FORCED).masked_fill(~valid, INVALID)
    best = budget
    if noise is not None:
        drawn = (budget * share).to(budget.dtype)
        forced_count = (forced & valid).sum(-1, dtype=budget.dtype)
        best = torch.maximum(budget - drawn, forced_count)
    kept = _take(keys, best, rank)
    if noise is not None:
        lottery = noise.masked_fill(kept | ~valid, -1)
        kept = kept | _take(lottery, budget - best, rank)
    return kept


def compact(page_table: Tensor, kept: Tensor) -> Compacted:
    """Gather the pages of the kept blocks.

    page_table: int32 [rows, width]; kept: bool [layers, rows, width].
    """
    layers, rows, width = kept.shape
    block = torch.arange(width, device=kept.device).expand(layers, rows, width)
    column = kept.cumsum(-1) - 1
    spill = torch.where(kept, column, width)
    blocks = torch.zeros(layers, rows, width + 1, dtype=torch.int64, device=kept.device)
    blocks = blocks.scatter_(-1, spill, block)[..., :width]
    pages = page_table.expand(layers, rows, width).gather(-1, blocks)
    return Compacted(pages, blocks.int())


def _take(keys: Tensor, count: Tensor, rank: Tensor) -> Tensor:
    order = keys.sort(dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(keys, dtype=torch.bool).scatter_(-1, order, rank < count[..., None])
