"""Verify steps of speculative decoding: a request has several rows, and a prefix is accepted.

Row i of a request holds the tokens up to its draft i, so it is one token longer than row i - 1. All
rows share one set of kept blocks. How many were right is known one step later, from the growth of
the request; only then do their scores enter the averages, in the order of the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.budget import block_count


def fold_drafts(
    history: BlockHistory, rows: Tensor, accepted: Tensor, lengths: Tensor, width: int, ratio: int
) -> None:
    """Take in the accepted rows of the last step beyond its first, which is folded already.

    rows: int64 [n]. accepted: int [n], rows of the last step to take in, the first included.
    lengths: int [n], tokens of the first. width: blocks looked at. ratio: tokens of an entry.
    """
    block = torch.arange(width, device=rows.device)
    # a block that begins within the step has no score of the first row, but it is always kept
    kept = ~history.recent[:, rows, :width].view(torch.float32).isnan()
    kept = kept | (block >= block_count(lengths // ratio)[:, None])
    for draft in range(1, history.stash.shape[0]):
        seen = history.stash[draft][:, rows, :width].view(torch.float32)
        seen = seen.masked_fill(~kept, float("nan"))
        history.fold(rows, accepted > draft, (lengths + draft) // ratio, width, seen)


def row_lengths(lengths: Tensor, verify_rows: int, ratio: int, skipped: Tensor) -> Tensor:
    """Compact lengths of all rows, request-major: int32 [..., n * verify_rows], in entries.

    lengths: int32 [n], tokens of the first row of each request. skipped: int32 [..., n], entries.
    """
    more = torch.arange(verify_rows, dtype=lengths.dtype, device=lengths.device)
    return ((lengths[:, None] + more) // ratio - skipped[..., None]).flatten(-2)
