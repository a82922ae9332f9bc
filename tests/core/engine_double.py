"""A stand-in for what an engine does around SpinState: pages, rows, page tables and logits."""

from __future__ import annotations

import numpy as np
import torch

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, SpinState

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30)


class EngineDouble:
    """Requests over a page pool; row 0 and page 0 are padding, as in SGLang."""

    def __init__(self, state: SpinState, pages: int, rng: np.random.Generator) -> None:
        self.state, self.rng = state, rng
        self.free = list(range(1, pages))
        self.free_rows = list(range(1, state.shape.rows))
        self.pages: dict[int, list[int]] = {}
        self.length: dict[int, int] = {}
        self.cached: list[int] = []  # full pages of the first request that end_one() ended

    def open(self, row: int, length: int, shared: list[int]) -> list[int]:
        """Start a request whose first pages are `shared`; returns the pages newly taken."""
        self.free_rows.remove(row)
        self.state.open_rows(torch.tensor([row]))
        self.pages[row] = list(shared)
        self.length[row] = length
        return self.grow(row)

    def grow(self, row: int) -> list[int]:
        """Take the pages that the row's length needs."""
        taken = []
        while len(self.pages[row]) * BLOCK < self.length[row]:
            taken.append(self.free.pop())
            self.pages[row].append(taken[-1])
        dump = self.state.shape.pages
        self.state.drop_pages(torch.tensor([*taken, dump]))
        return taken

    def close(self, row: int, keep: int) -> list[int]:
        """End the request; its first `keep` pages stay cached, the others are free again."""
        full = self.pages[row][: self.length[row] // BLOCK]
        self.state.close_rows(torch.tensor([row]), torch.tensor(full, dtype=torch.int64))
        pages = self.pages.pop(row)
        del self.length[row]
        self.free_rows.append(row)
        self.free += pages[keep:]
        return full

    def end_one(self) -> tuple[int, list[int]] | None:
        """End a random request; returns its row and its full pages. What is cached stays so."""
        if not self.pages:
            return None
        row = int(self.rng.choice(list(self.pages)))
        pages = self.pages[row]
        if not self.cached:
            self.cached = pages[: self.length[row] // BLOCK]
        return row, self.close(row, keep=sum(page in self.cached for page in pages))

    def begin(self, rows: list[int], padding: int, slack: int) -> tuple[Plan, torch.Tensor]:
        """One step over `rows` and `padding` idle rows, with stale tails and spare width."""
        count = max(len(self.pages[r]) for r in rows) + slack
        count = min(count, self.state.shape.blocks)
        table = torch.from_numpy(self.rng.integers(0, 5, (len(rows) + padding, count)))
        lengths = [self.length[r] for r in rows] + [1] * padding
        for i, row in enumerate(rows):
            table[i, : len(self.pages[row])] = torch.tensor(self.pages[row])
        table[len(rows) :] = 0
        lens = torch.tensor(lengths, dtype=torch.int32)
        owners = torch.tensor(rows + [0] * padding)
        return self.state.begin(table.int(), lens, owners), lens

    def logits(self, plan: Plan, layer: int, truth: np.ndarray, lens: torch.Tensor) -> torch.Tensor:
        """What a scorer writes, see compact_logits."""
        return compact_logits(plan, layer, truth, self.rng)


def compact_logits(
    plan: Plan, layer: int, truth: np.ndarray, rng: np.random.Generator
) -> torch.Tensor:
    """What a scorer writes: truth [rows, slots] at the kept blocks, garbage past the length."""
    n, width = plan.blocks.shape[1:]
    out = torch.empty(n, width * BLOCK)
    for i in range(n):
        kept = int(-(-plan.lengths[layer, i] // BLOCK))
        slots = (plan.blocks[layer, i, :kept, None] * BLOCK + torch.arange(BLOCK)).flatten()
        row = torch.from_numpy(truth[i])
        out[i, : kept * BLOCK] = row[slots.clamp(max=row.shape[0] - 1)]
        out[i, int(plan.lengths[layer, i]) :] = float(rng.choice(GARBAGE))
    return out
