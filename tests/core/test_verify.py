"""Verify steps: what is remembered is what an observer of the accepted rows alone would know."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Shape, SpinState
from tests.core.oracle import Oracle
from tests.core.verify_life import LAYERS, MOST, SHAPE, VerifyLife


def _life(seed: int, **options: Any) -> VerifyLife:
    config = SpinConfig(enabled=True, **{"sparsity": 0.5, **options})
    oracle = Oracle(LAYERS, config.alpha, config.staleness, config.sparsity, floor=3)
    state = SpinState(config, SHAPE)
    return VerifyLife(seed, state, oracle, state.budgets.set if config.miss_slo else None)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.sampled_from([0.25, 0.3, 1.0]),
    staleness=st.sampled_from([0.0, 0.4, 2.0]),
    sparsity=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_only_accepted_rows_count(
    seed: int, alpha: float, staleness: float, sparsity: float
) -> None:
    """Kept blocks, row lengths, V, D and ages equal the oracle's, which sees accepted rows only."""
    life = _life(seed, alpha=alpha, staleness=staleness, sparsity=sparsity)
    for _ in range(50):
        life.act()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_layers_of_different_budgets(seed: int) -> None:
    """The same while layers change their classes: rows of a request shrink alike in each layer."""
    # no row of so short a life is audited
    life = _life(seed, miss_slo=0.05, audit_every=32768)
    for _ in range(50):
        life.act()


@pytest.mark.parametrize("rows", range(1, MOST + 1))
@pytest.mark.parametrize("offset", [-5, -3, -2, -1, 0, 1])
def test_every_rejected_prefix_at_a_page_border(rows: int, offset: int) -> None:
    """Scripted acceptance of every length, twice in a row, as the rows cross into a new page.

    Each step compares, so the last one shows what the one before left.
    """
    for first, second in itertools.product(range(1, rows + 1), repeat=2):
        life = _life(rows)
        life.engine.open(1, 9 * BLOCK + offset, [])
        life.oracle.open(1)
        for accepted in (first, second, rows):
            life.verify([1], rows, {1: accepted})
        life.verify([1], 1, {1: 1})


def test_the_kept_set_is_within_the_union_of_what_each_row_would_keep() -> None:
    """No block is kept that none of the rows would have chosen alone, with the same budget."""
    straddled = 0
    for seed in range(20):
        life = _life(seed, staleness=0.0, sparsity=0.4)
        life.engine.open(1, 10 * BLOCK - 18, [])
        life.oracle.open(1)
        for _ in range(8):
            life.verify([1], 4, {1: 2})
        state = life.oracle.rows[0, 1]
        life.oracle._fold(state)
        length = life.engine.length[1] + 2
        plan, _ = _verify_only(life, 4)
        kept = plan.blocks[0, 0, : -(-int(plan.lengths[0, -1]) // BLOCK)].tolist()
        union: set[int] = {0}
        for more in range(4):
            count = -(-(length + more) // BLOCK)
            scores = life.oracle._of_row(state, count)
            ranked = sorted(scores, key=lambda b, s=scores: (-s[b], b))
            union |= set(ranked[: len(kept)]) | {count - 1, count - 2}
        assert set(kept) <= union | (set(range(count)) - set(state.vertical))
        straddled += -(-length // BLOCK) != count
    assert straddled == 20


def _verify_only(life: VerifyLife, n: int) -> Any:
    life.engine.advance(1, n - 1)
    return life.engine.verify([1], 0, 0, n)


@pytest.mark.parametrize("length", [640, 639, 638, 637, 636])
def test_attention_never_reads_padding_in_any_row(length: int) -> None:
    """Every row of a verify step keeps at least index_topk entries, and its own newest block."""
    state = SpinState(SpinConfig(enabled=True, sparsity=0.9), SHAPE)
    state.open_rows(torch.tensor([1]))
    table = torch.arange(11, dtype=torch.int32)[None]
    for step in range(3):
        lengths = torch.tensor([length - 2 + step], dtype=torch.int32)
        plan = state.begin(table, lengths, torch.tensor([1]), 4)
        for layer in range(LAYERS):
            state.observe(layer, torch.randn(4, 11 * BLOCK), plan)
    for draft in range(4):
        entries = int(plan.lengths[0, draft])
        assert entries >= SHAPE.index_topk
        newest = plan.blocks[0, 0, -(-entries // BLOCK) - 1]
        assert newest == -(-(length + draft) // BLOCK) - 1
        assert entries % BLOCK == (length + draft) % BLOCK


def test_padding_in_a_verify_batch_writes_nothing() -> None:
    """A padded row of a verify step leaves the real rows as they are without it."""
    states = [SpinState(SpinConfig(enabled=True, sparsity=0.5), SHAPE) for _ in range(2)]
    for state, padding in zip(states, (0, 2), strict=True):
        torch.manual_seed(5)
        state.open_rows(torch.tensor([2]))
        for step in range(4):
            owners = torch.tensor([2] + [0] * padding)
            lengths = torch.tensor([900 + 2 * step] + [1] * padding, dtype=torch.int32)
            table = torch.arange(15, dtype=torch.int32).repeat(1 + padding, 1)
            plan = state.begin(table, lengths, owners, 3)
            for layer in range(LAYERS):
                logits = torch.cat(
                    [torch.randn(3, 15 * BLOCK), torch.full((3 * padding, 960), 9.0)]
                )
                state.observe(layer, logits, plan)
    alone, padded = (state.history for state in states)
    assert isinstance(alone, BlockHistory)
    assert isinstance(padded, BlockHistory)
    for name in ("vertical", "distance", "recent"):
        a, b = (getattr(h, name)[:, 1:].view(torch.int32) for h in (alone, padded))
        assert torch.equal(a, b)


def test_the_ablation_takes_the_first_row_alone() -> None:
    """With verify_update=first the averages equal those of a life in which one row was accepted."""
    first = _life(3, verify_update="first")
    first.engine.open(1, 600, [])
    first.oracle.open(1)
    told = first.oracle.observe
    seen: dict[tuple[int, int], int] = {}

    def only_first(layer: int, row: int, maxima: dict) -> None:
        at = (layer, first.engine.length[row])
        seen[at] = seen.get(at, 0) + 1
        if seen[at] == 1:
            told(layer, row, maxima)

    first.oracle.observe = only_first  # type: ignore[method-assign]
    for accepted in (4, 1, 3, 2, 4, 4):
        first.verify([1], 4, {1: accepted})
    assert first.state.history.stash.shape[0] == 1
    assert max(seen.values()) > 1


def test_a_history_of_slots_has_no_verify_step() -> None:
    """spin-paper keeps one score a slot: several rows are refused, whether or not all are kept."""
    shape = Shape(2, 3, 4, 20, 100, verify_rows=2)
    paper: dict[str, Any] = {"enabled": True, "policy": "spin-paper"}
    with pytest.raises(ValueError, match="'spin-paper' has no verify step"):
        SpinState(SpinConfig(**paper), shape)
    state = SpinState(SpinConfig(**paper, verify_update="first"), shape)
    table, lengths = torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([70])
    with pytest.raises(NotImplementedError, match="no verify step"):
        state.begin(table, lengths.int(), torch.tensor([1]), 2)
    plan = state.begin(table, lengths.int(), torch.tensor([1]))
    of_draft = torch.zeros(1, 2 * 64), plan.blocks[0], plan.lengths[0]
    with pytest.raises(NotImplementedError, match="no verify step"):
        state.history.observe(0, plan.request_rows, *of_draft, 1)
