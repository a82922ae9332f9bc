"""Both implementations through whole lives of requests: opens, steps, closes, reuse of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape
from tests.core.engine_double import EngineDouble
from tests.kernels.twins import Twins

pytestmark = pytest.mark.usefixtures("small_chunks")

LAYERS, ROWS, BLOCKS, PAGES, TOPK = 2, 4, 22, 90, 100


def _scores(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Scores with ties, both zeros, negatives and now and then one that is no number."""
    scale = np.float32(rng.choice([1, 3, 7]))
    field = rng.integers(-6, 6, (rows, BLOCKS * BLOCK)).astype(np.float32) / scale
    field[field == 0] = rng.choice([0.0, -0.0])
    if rng.random() < 0.3:
        odd = [np.nan, np.inf, -np.inf, 5e30]
        field[rng.integers(0, rows), rng.integers(0, 4 * BLOCK)] = rng.choice(odd)
    return field


class _Life:
    def __init__(self, seed: int, config: SpinConfig) -> None:
        self.rng = np.random.default_rng(seed)
        self.twins = Twins(config, Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK))
        self.engine = EngineDouble(self.twins, PAGES, self.rng)  # type: ignore[arg-type]

    def open(self) -> None:
        if not self.engine.free_rows:
            return
        row = int(self.rng.choice(self.engine.free_rows))
        shared = self.engine.cached[: self.rng.integers(0, len(self.engine.cached) + 1)]
        length = len(shared) * BLOCK + int(self.rng.integers(1, 8 * BLOCK))
        length = min(length, (BLOCKS - 2) * BLOCK)
        self.engine.open(row, length, shared[: length // BLOCK])

    def close(self) -> None:
        self.engine.end_one()

    def step(self) -> None:
        """Rows grow by up to a block, or (one in six) repeat their length: a rejected token."""
        rows = [r for r in self.engine.pages if self.engine.length[r] < (BLOCKS - 2) * BLOCK]
        rows = [r for r in rows if self.rng.random() < 0.8]
        if not rows:
            return
        for row in rows:
            self.engine.length[row] += int(self.rng.choice([0, 1, 1, 1, 1, 40]))
            self.engine.grow(row)
        padding, slack = int(self.rng.integers(0, 3)), int(self.rng.integers(0, 4))
        plan, lens = self.engine.begin(rows, padding, slack)
        for layer in range(LAYERS):
            truth = _scores(self.rng, len(lens))
            self.twins.observe(layer, self.engine.logits(plan, layer, truth, lens), plan)


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "spin", "prev-iter", "random", "dense"]),
    alpha=st.sampled_from([0.25, 0.3, 1.0]),
    staleness=st.sampled_from([0.0, 0.4, 2.0]),
    sparsity=st.sampled_from([0.3, 0.5, 0.9]),
    every=st.sampled_from([0, 1, 3]),
)
def test_every_step_of_a_life_is_the_same_bits(
    seed: int, policy: str, alpha: float, staleness: float, sparsity: float, every: int
) -> None:
    """Plans, history, prior and counters of the kernel equal the reference's after every event."""
    config = SpinConfig(
        enabled=True,
        policy=policy,
        alpha=alpha,
        staleness=staleness,
        sparsity=sparsity,
        seed=seed % 1000,
        audit_every=every,
    )
    life = _Life(seed, config)
    for _ in range(16):
        act = life.rng.choice(["open", "close", "step"], p=[0.2, 0.1, 0.7])
        getattr(life, act)()
