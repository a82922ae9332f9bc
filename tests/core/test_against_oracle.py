"""The tensors against the plain-Python method, over random lives of requests."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape, SpinState
from tests.core.engine_double import EngineDouble
from tests.core.oracle import SUSPECT, Oracle

LAYERS, ROWS, BLOCKS, PAGES, TOPK = 3, 5, 24, 120, 100


def random_scores(rng: np.random.Generator, slots: int) -> np.ndarray:
    """Scores with ties, negatives, exact zeros and now and then one that is no number."""
    field = rng.integers(-6, 6, slots).astype(np.float32) / np.float32(rng.choice([1, 3, 7]))
    if rng.random() < 0.2:
        field[rng.integers(0, slots)] = rng.choice([np.nan, np.inf, -np.inf])
    return field


def _maxima(truth: np.ndarray, kept: set[int], length: int) -> dict[int, np.float32]:
    maxima = {b: np.max(truth[b * BLOCK : min(length, (b + 1) * BLOCK)]) for b in kept}
    return {b: m if np.isfinite(m) else SUSPECT for b, m in maxima.items()}


class _Life:
    """Drives the same events into SpinState and Oracle and compares every step."""

    def __init__(self, seed: int, config: SpinConfig) -> None:
        self.rng = np.random.default_rng(seed)
        shape = Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK)
        self.state = SpinState(config, shape)
        self.engine = EngineDouble(self.state, PAGES, self.rng)
        self.oracle = Oracle(LAYERS, config.alpha, config.staleness, config.sparsity, floor=3)
        self.sparse_steps = 0

    def open(self) -> None:
        if not self.engine.free_rows:
            return
        row = int(self.rng.choice(self.engine.free_rows))
        shared = self.engine.cached[: self.rng.integers(0, len(self.engine.cached) + 1)]
        length = len(shared) * BLOCK + int(self.rng.integers(1, 9 * BLOCK))
        length = min(length, (BLOCKS - 2) * BLOCK)
        self.oracle.open(row)
        self.oracle.drop(self.engine.open(row, length, shared[: length // BLOCK]))

    def close(self) -> None:
        if ended := self.engine.end_one():
            self.oracle.close(*ended)

    def step(self) -> None:
        rows = [r for r in self.engine.pages if self.engine.length[r] < BLOCKS * BLOCK - 1]
        rows = [r for r in rows if self.rng.random() < 0.8]
        if not rows:
            return
        for row in rows:
            self.engine.length[row] += 1
            self.oracle.drop(self.engine.grow(row))
        padding, slack = int(self.rng.integers(0, 3)), int(self.rng.integers(0, 4))
        plan, lens = self.engine.begin(rows, padding, slack)
        table = {r: self.engine.pages[r] for r in rows}
        kept = self.oracle.step(table, {r: self.engine.length[r] for r in rows})
        for layer in range(LAYERS):
            truth = np.stack([random_scores(self.rng, BLOCKS * BLOCK) for _ in range(len(lens))])
            self._compare(plan, layer, rows, table, kept)
            self.state.observe(layer, self.engine.logits(plan, layer, truth, lens), plan)
            for i, row in enumerate(rows):
                maxima = _maxima(truth[i], kept[layer, row], self.engine.length[row])
                self.oracle.observe(layer, row, maxima)

    def _compare(self, plan, layer, rows, table, kept) -> None:
        for i, row in enumerate(rows):
            expected = sorted(kept[layer, row])
            count, length = len(table[row]), self.engine.length[row]
            assert plan.lengths[layer, i] == length - BLOCK * (count - len(expected))
            assert plan.blocks[layer, i, : len(expected)].tolist() == expected
            assert plan.pages[layer, i, : len(expected)].tolist() == [
                table[row][b] for b in expected
            ]
            self.sparse_steps += len(expected) < count


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from([0.25, 0.5, 0.3, 1.0]),
    staleness=st.sampled_from([0.0, 0.4, 2.0]),
    sparsity=st.sampled_from([0.0, 0.3, 0.5, 0.9]),
)
def test_every_step_keeps_what_the_plain_method_keeps(
    seed: int, alpha: float, staleness: float, sparsity: float
) -> None:
    """Kept blocks, pages and lengths equal the oracle's over opens, steps, closes and reuse."""
    config = SpinConfig(enabled=True, alpha=alpha, staleness=staleness, sparsity=sparsity)
    life = _Life(seed, config)
    for _ in range(60):
        act = life.rng.choice(["open", "close", "step"], p=[0.15, 0.08, 0.77])
        getattr(life, act)()


def test_the_comparison_reaches_sparse_steps() -> None:
    """The random lives are long enough that most compared rows skip blocks."""
    config = SpinConfig(enabled=True, sparsity=0.5)
    life = _Life(7, config)
    life.open()
    for _ in range(40):
        life.step()
    assert life.sparse_steps >= 20 * LAYERS


@pytest.mark.parametrize("policy", ["spin", "spin-paper", "prev-iter", "random", "dense"])
def test_same_inputs_same_plan(policy: str) -> None:
    """Two ranks that see the same events and logits select the same blocks, bit for bit."""
    plans = []
    for _ in range(2):
        life = _Life(3, SpinConfig(enabled=True))
        life.state = SpinState(
            SpinConfig(enabled=True, policy=policy, sparsity=0.5), life.state.shape
        )
        life.engine.state = life.state
        life.open()
        row = next(iter(life.engine.pages))
        for _ in range(12):
            life.engine.length[row] += 1
            life.engine.grow(row)
            plan, lens = life.engine.begin([row], 1, 0)
            for layer in range(LAYERS):
                truth = np.stack([random_scores(life.rng, BLOCKS * BLOCK) for _ in range(2)])
                life.state.observe(layer, life.engine.logits(plan, layer, truth, lens), plan)
            plans.append((plan.pages, plan.lengths))
    half = len(plans) // 2
    for (a, la), (b, lb) in zip(plans[:half], plans[half:], strict=True):
        assert torch.equal(a, b)
        assert torch.equal(la, lb)
