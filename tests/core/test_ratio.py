"""Entries that stand for four tokens: steps are counted in tokens, everything else in entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape, SpinState
from tests.core.test_against_oracle import random_scores
from tests.core.tokens_double import RATIO, TokensLife
from tests.kernels.twins import Twins

SHAPE = Shape(layers=2, rows=4, blocks=24, pages=120, index_topk=100, ratio=RATIO)


def _state(policy: str = "spin") -> SpinState:
    state = SpinState(SpinConfig(enabled=True, policy=policy, sparsity=0.5), SHAPE)
    state.open_rows(torch.tensor([1]))
    return state


def _step(state: SpinState, tokens: int) -> Plan:
    table = torch.arange(SHAPE.blocks).int()[None]
    plan = state.begin(table, torch.tensor([tokens], dtype=torch.int32), torch.tensor([1]))
    for layer in range(SHAPE.layers):
        state.observe(layer, torch.ones(1, SHAPE.blocks * BLOCK), plan)
    return plan


@pytest.mark.parametrize("policy", ["spin", "spin-paper"])
def test_a_token_that_completes_no_entry_is_a_step(policy: str) -> None:
    """Scores count from the next token on, whether or not the row of entries has grown."""
    state = _state(policy)
    _step(state, 10 * BLOCK * RATIO + 1)
    _step(state, 10 * BLOCK * RATIO + 2)
    assert not state.history.block_values(torch.tensor([1]), 10).isnan().any()


def test_a_repeated_token_count_is_not_folded() -> None:
    """A step whose token was not accepted leaves no trace."""
    state = _state()
    _step(state, 10 * BLOCK * RATIO + 1)
    _step(state, 10 * BLOCK * RATIO + 1)
    assert state.history.block_values(torch.tensor([1]), 10).isnan().all()


@pytest.mark.parametrize(
    ("tokens", "entries"), [(1, 0), (3, 0), (4, 1), (4 * BLOCK - 1, BLOCK - 1), (4 * BLOCK, BLOCK)]
)
def test_lengths_of_a_plan_are_entries(tokens: int, entries: int) -> None:
    """A row has one entry for each four tokens it has completed, and may have none."""
    assert _step(_state(), tokens).lengths[0].tolist() == [entries]


def test_blocks_are_counted_in_entries_at_the_end_of_a_request() -> None:
    """The last step's scores go to the pages of its blocks, 256 tokens each."""
    state = _state()
    _step(state, 3 * BLOCK * RATIO + 5)
    state.close_rows(torch.tensor([1]), torch.tensor([7, 8, 9]))
    assert not state.prior[:, [7, 8, 9]].isnan().any()
    assert state.prior[:, 10:].isnan().all()


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "prev-iter", "random", "dense"]),
)
def test_the_compiled_form_agrees(seed: int, policy: str) -> None:
    """Plans, state and counters are the same bits as the reference's over whole lives."""
    config = SpinConfig(enabled=True, policy=policy, sparsity=0.5)
    rng = np.random.default_rng(seed)
    twins = Twins(config, SHAPE, impl="numba")
    life = TokensLife(twins, rng)
    for _ in range(40):
        done = getattr(life, rng.choice(["open", "close", "step"], p=[0.15, 0.05, 0.8]))()
        if done is None:
            continue
        _rows, plan, entries = done
        for layer in range(SHAPE.layers):
            truth = np.stack([random_scores(rng, SHAPE.blocks * BLOCK) for _ in entries])
            twins.observe(layer, life.engine.logits(plan, layer, truth, entries), plan)
