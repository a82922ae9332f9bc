"""How many blocks a row of n blocks may keep."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK


def budget_floor(index_topk: int, *, verify: bool = False) -> int:
    """Fewest blocks that surely hold index_topk entries: whole blocks plus the partial newest one.

    Attention reads min(length, index_topk) entries whatever was skipped, so fewer would expose
    top-k padding inside that length. Verifying several tokens may straddle one more page.
    """
    return -(-index_topk // BLOCK) + 1 + int(verify)


def budget_table(blocks: int, sparsity: float, floor: int) -> Tensor:
    """Kept blocks for every row size 0..blocks: min(n, max(floor, ceil((1 - sparsity) * n))).

    Returns int32 [blocks + 1]. A table because ceil of a float product depends on rounding, and
    because the recorded region may only look up, not branch.
    """
    skip = Fraction(str(sparsity))
    kept = [min(n, max(floor, n - int(skip * n))) for n in range(blocks + 1)]
    return torch.tensor(kept, dtype=torch.int32)


def block_count(lengths: Tensor) -> Tensor:
    """Blocks that hold `lengths` entries, the newest possibly partial. Same shape and dtype."""
    return (lengths + (BLOCK - 1)) // BLOCK
