"""Short steps on small states, for tests that tell a story in a few lines."""

from __future__ import annotations

import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape
from tests.kernels.twins import Twins, give_history, int32, page_tables

LAYERS, ROWS, BLOCKS, PAGES = 2, 6, 48, 300
SHAPE = Shape(LAYERS, ROWS, BLOCKS, PAGES, 100)


def small_twins(sparsity: float = 0.5, policy: str = "spin", shape: Shape = SHAPE) -> Twins:
    """Two equal states of LAYERS layers."""
    return Twins(SpinConfig(enabled=True, sparsity=sparsity, policy=policy), shape)


def warm(twins: Twins, counts: dict[int, int]) -> None:
    """Give rows a history: blocks of each row by its number."""
    generator = torch.Generator().manual_seed(5)
    for row, count in counts.items():
        give_history(twins, row, torch.randn(LAYERS, count, generator=generator))


def step(twins: Twins, lengths: dict[int, int], slack: int = 2) -> Plan:
    """Begin a step for rows by their lengths, with `slack` stale table columns."""
    counts = [-(-n // BLOCK) for n in lengths.values()]
    table = page_tables(counts, min(BLOCKS, max(1, *counts) + slack))
    return twins.begin(table, int32(list(lengths.values())), torch.tensor(list(lengths)))


def kept_blocks(plan: Plan, layer: int, index: int) -> list[int]:
    """Blocks that one row of the batch kept, in one layer."""
    count = -(-int(plan.lengths[layer, index]) // BLOCK)
    return plan.blocks[layer, index, :count].tolist()


def score_all(twins: Twins, plan: Plan, value: float) -> None:
    """Observe the same score everywhere."""
    logits = torch.full((plan.pages.shape[1], plan.pages.shape[2] * BLOCK), value)
    for layer in range(LAYERS):
        twins.observe(layer, logits, plan)
