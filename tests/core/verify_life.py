"""Random requests whose steps alternate between plain decode and verify, with random acceptance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Plan, Shape
from sglang_spin.core.verify import row_lengths
from tests.core.engine_double import EngineDouble
from tests.core.moves import random_allotment
from tests.core.oracle import SUSPECT, Oracle

LAYERS, ROWS, BLOCKS, PAGES, TOPK, MOST = 2, 5, 20, 110, 100, 4
SHAPE = Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK, verify_rows=MOST)


class VerifyDouble(EngineDouble):
    """An engine whose requests grow by what the last step accepted."""

    def __init__(self, state: Any, pages: int, rng: np.random.Generator) -> None:
        super().__init__(state, pages, rng)
        self.accepted: dict[int, int] = {}

    def close(self, row: int, keep: int) -> list[int]:
        """End the request at its last accepted token."""
        length = self.length[row] + self.accepted.pop(row, 1) - 1
        full = self.pages[row][: length // BLOCK]
        pages = torch.tensor(full, dtype=torch.int64)
        self.state.close_rows(torch.tensor([row]), pages, length)
        self.free += self.pages.pop(row)[keep:]
        del self.length[row]
        self.free_rows.append(row)
        return full

    def advance(self, row: int, drafts: int) -> list[int]:
        """Take the accepted tokens, one more, and pages for `drafts` behind it."""
        self.length[row] += self.accepted.get(row, 1)
        committed, self.length[row] = self.length[row], self.length[row] + drafts
        taken = self.grow(row)
        self.length[row] = committed
        return taken

    def verify(self, rows: list[int], padding: int, slack: int, n: int) -> tuple[Plan, Any]:
        """Begin a step of `n` tokens a request."""
        width = min(max(len(self.pages[r]) for r in rows) + slack, self.state.shape.blocks)
        table = torch.from_numpy(self.rng.integers(0, 5, (len(rows) + padding, width)))
        for i, row in enumerate(rows):
            table[i, : len(self.pages[row])] = torch.tensor(self.pages[row])
        table[len(rows) :] = 0
        lengths = torch.tensor([self.length[r] for r in rows] + [1] * padding, dtype=torch.int32)
        owners = torch.tensor(rows + [0] * padding)
        whole = row_lengths(lengths, n, 1, torch.zeros_like(lengths))
        return self.state.begin(table.int(), lengths, owners, n), whole

    def row_logits(self, plan: Plan, layer: int, truth: np.ndarray) -> torch.Tensor:
        """What a scorer writes for every row of every request: see EngineDouble.logits."""
        n = plan.verify_rows
        spread = plan._replace(
            blocks=plan.blocks.repeat_interleave(n, 1),
            request_rows=plan.request_rows.repeat_interleave(n),
        )
        return self.logits(spread, layer, truth, plan.lengths[layer])


class VerifyLife:
    """Drives events into `state` (a SpinState, or what stands for one) and an oracle if given.

    divide: gives layers other budgets, now and then.
    """

    def __init__(
        self,
        seed: int,
        state: Any,
        oracle: Oracle | None = None,
        divide: Callable[[Allotment], None] | None = None,
    ) -> None:
        self.divide = divide
        self.rng = np.random.default_rng(seed)
        self.engine = VerifyDouble(state, PAGES, self.rng)
        self.state, self.oracle = state, oracle
        self.steps = 0

    def act(self) -> None:
        """One random event."""
        if self.divide and self.rng.random() < 0.15:
            self.move()
        getattr(self, self.rng.choice(["open", "close", "step"], p=[0.15, 0.06, 0.79]))()

    def move(self) -> None:
        """Divide the budget anew."""
        assert self.divide
        allotment = random_allotment(self.rng, LAYERS)
        self.divide(allotment)
        if self.oracle:
            self.oracle.sparsity, self.oracle.by_layer = allotment.sparsity, allotment.by_layer

    def open(self) -> None:
        if not self.engine.free_rows:
            return
        row = int(self.rng.choice(self.engine.free_rows))
        shared = self.engine.cached[: self.rng.integers(0, len(self.engine.cached) + 1)]
        # near the end of a page, where the rows of one step straddle two
        edge = BLOCK * int(self.rng.integers(1, 10)) - int(self.rng.integers(0, 6))
        length = max(len(shared) * BLOCK + 1, edge)
        taken = self.engine.open(row, length, shared)
        if self.oracle:
            self.oracle.open(row)
            self.oracle.drop(taken)

    def close(self) -> None:
        ended = self.engine.end_one()
        if ended and self.oracle:
            self.oracle.close(*ended)

    def step(self) -> None:
        rows = [r for r in self.engine.pages if self.engine.length[r] < (BLOCKS - 2) * BLOCK]
        rows = [r for r in rows if self.rng.random() < 0.8]
        if rows:
            n = int(self.rng.choice([1, 2, 3, MOST]))
            self.verify(rows, n, {row: int(self.rng.integers(1, n + 1)) for row in rows})

    def verify(self, rows: list[int], n: int, accepted: dict[int, int]) -> None:
        """A step of n tokens a request, of which `accepted` turn out right."""
        for row in rows:
            taken = self.engine.advance(row, n - 1)
            if self.oracle:
                self.oracle.drop(taken)
        self.engine.accepted |= accepted
        plan, _ = self.engine.verify(rows, *(int(x) for x in self.rng.integers(0, 3, 2)), n)
        if self.oracle:
            lengths = {r: self.engine.length[r] for r in rows}
            self.compare(plan, rows, self._oracle_step(lengths, n))
        for layer in range(LAYERS):
            truth = random_scores(self.rng, plan.lengths.shape[1])
            logits = self.engine.row_logits(plan, layer, truth)
            self.state.observe(layer, logits, plan)
            self._tell(plan, layer, rows, truth)
        self.steps += 1

    def _oracle_step(self, lengths: dict[int, int], n: int) -> dict:
        assert self.oracle
        blocks = {r: -(-(length + n - 1) // BLOCK) for r, length in lengths.items()}
        table = {r: self.engine.pages[r][:count] for r, count in blocks.items()}
        return self.oracle.step(table, lengths, n - 1)

    def _tell(self, plan: Plan, layer: int, rows: list[int], truth: np.ndarray) -> None:
        """Show the oracle the accepted rows, and nothing else."""
        n = plan.verify_rows
        for i, row in enumerate(rows if self.oracle else []):
            for draft in range(self.engine.accepted[row]):
                length, scores = self.engine.length[row] + draft, truth[i * n + draft]
                kept = kept_blocks(plan, layer, i, draft)
                ends = {b: min(length, (b + 1) * BLOCK) for b in kept}
                maxima = {b: np.max(scores[b * BLOCK : end]) for b, end in ends.items()}
                self.oracle.observe(
                    layer, row, {b: m if np.isfinite(m) else SUSPECT for b, m in maxima.items()}
                )

    def compare(self, plan: Plan, rows: list[int], kept: dict) -> None:
        """Kept blocks, lengths of every row, and all that is remembered, equal the oracle's."""
        n = plan.verify_rows
        for i, row in enumerate(rows):
            count = -(-(self.engine.length[row] + n - 1) // BLOCK)
            for layer in range(LAYERS):
                expected = sorted(kept[layer, row])
                assert kept_blocks(plan, layer, i, n - 1) == expected
                for draft in range(n):
                    length = self.engine.length[row] + draft
                    seen = [b for b in expected if b * BLOCK < length]
                    assert kept_blocks(plan, layer, i, draft) == seen
                    skipped = count - len(expected)
                    assert plan.lengths[layer, i * n + draft] == length - BLOCK * skipped
                self.compare_state(layer, row)

    def compare_state(self, layer: int, row: int) -> None:
        """V, D and the ages of known blocks."""
        assert self.oracle
        state, history = self.oracle.rows[layer, row], self.state.history
        for name in ("vertical", "distance"):
            want = np.full(BLOCKS, np.nan, np.float32)
            known = getattr(state, name)
            want[list(known)] = list(known.values())
            np.testing.assert_array_equal(getattr(history, name)[layer, row].numpy(), want)
        for block in state.vertical:
            assert int(history.recent[layer, row, block]) & 63 == state.age.get(block, 50)


def kept_blocks(plan: Plan, layer: int, i: int, draft: int) -> list[int]:
    """Logical blocks that row `draft` of the batch's request i is scored on."""
    length = int(plan.lengths[layer, i * plan.verify_rows + draft])
    return plan.blocks[layer, i, : -(-length // BLOCK)].tolist()


def random_scores(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Scores with ties, both zeros, negatives, and now and then one that is no number."""
    field = rng.integers(-6, 6, (rows, BLOCKS * BLOCK)).astype(np.float32)
    field /= np.float32(rng.choice([1, 3, 7]))
    if rng.random() < 0.2:
        field[rng.integers(0, rows), rng.integers(0, 9 * BLOCK)] = rng.choice([np.nan, np.inf])
    return field
