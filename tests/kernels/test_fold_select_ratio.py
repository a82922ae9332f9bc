"""The Triton form where an entry stands for four tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape
from sglang_spin.kernels.fold_select import triton as kernel
from tests.core.tokens_double import RATIO, TokensLife
from tests.kernels.twins import Twins

SHAPE = Shape(layers=2, rows=3, blocks=20, pages=70, index_topk=100, ratio=RATIO)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(["spin", "random", "dense"]))
def test_every_step_of_a_life_is_the_same_bits(seed: int, policy: str) -> None:
    """Kernel and reference agree on plans and state, rows without an entry included."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "CHUNK", 16)
        twins = Twins(SpinConfig(enabled=True, policy=policy, sparsity=0.5), SHAPE)
        life = TokensLife(twins, rng)
        for _ in range(12):
            done = getattr(life, rng.choice(["open", "close", "step"], p=[0.25, 0.05, 0.7]))()
            if done is None:
                continue
            _rows, plan, entries = done
            for layer in range(SHAPE.layers):
                truth = rng.standard_normal((len(entries), SHAPE.blocks * BLOCK), np.float32)
                twins.observe(layer, life.engine.logits(plan, layer, truth, entries), plan)
