"""The Triton form where layers have budgets by class, which change between steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.kernels.fold_select import allocate, fold_select
from tests.core import verify_life
from tests.core.engine_double import compact_logits
from tests.core.moves import random_allotment
from tests.core.verify_life import VerifyLife
from tests.kernels.twins import Twins, int32, page_tables

pytestmark = pytest.mark.usefixtures("small_chunks")

LAYERS, ROWS, BLOCKS = 5, 4, 37
SHAPE = Shape(LAYERS, ROWS, BLOCKS, 3 * BLOCKS + 1, 100)


def _config(policy: str = "spin", every: int = 3) -> SpinConfig:
    return SpinConfig(
        enabled=True, policy=policy, sparsity=0.5, audit_every=every, miss_slo=0.05, seed=9
    )


@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "spin", "prev-iter", "random"]),
    every=st.sampled_from([1, 3, 32768]),
)
def test_every_step_is_the_same_bits(seed: int, policy: str, every: int) -> None:
    """Plans, state and misses equal the reference's, whose outputs start as garbage, as classes
    change; an odd width, rows of several chunks, padding in the middle."""
    rng = np.random.default_rng(seed)
    twins = Twins(_config(policy, every), SHAPE)
    twins.open_rows(torch.tensor([1, 2, 3]))
    lengths = int32([BLOCK * 5 - 1, 1, BLOCK * 30 + 7, BLOCK * BLOCKS - 6])
    table = page_tables([BLOCKS, 1, BLOCKS, BLOCKS], BLOCKS)
    for _ in range(4):
        twins.divide(random_allotment(rng, LAYERS))
        lengths += 1
        plan = twins.begin(table, lengths, torch.tensor([1, 0, 2, 3]))
        truth = rng.standard_normal((4, BLOCKS * BLOCK)).astype(np.float32)
        for layer in range(LAYERS):
            twins.observe(layer, compact_logits(plan, layer, truth, rng), plan)


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_verify_step_is_the_same_bits(seed: int) -> None:
    """The same over steps that alternate between decode and verify."""
    twins = Twins(_config(), verify_life.SHAPE)
    life = VerifyLife(seed, twins, divide=twins.divide)
    life.open()
    for _ in range(8):
        life.act()


def test_each_layer_keeps_its_own_number_of_blocks() -> None:
    """Budgets differ by class as the table says, and every line of lengths is wide-aligned."""
    state = SpinState(_config(every=32768), SHAPE)
    state.open_rows(torch.tensor([3]))
    state.fresh[:] = False
    state.history.vertical[:] = torch.randn(LAYERS, ROWS, BLOCKS)  # type: ignore[attr-defined]
    state.budgets.set(Allotment(0.5, (0.8, 0.5, 0.2), (1, 0, 2, 0, 2)))
    workspace = allocate(SHAPE, ROWS, BLOCKS, "cpu", audits=True, classes=4)
    batch = page_tables([BLOCKS], BLOCKS), int32([BLOCKS * BLOCK]), torch.tensor([3])
    plan = fold_select(state, *batch, workspace=workspace, impl="triton")
    kept = [37 - 18, 37 - 29, 37 - 7, 37 - 29, 37 - 7]
    assert sum(kept) <= LAYERS * (37 - 18)
    assert (plan.lengths[:, 0] // BLOCK).tolist() == kept
    assert all(line.data_ptr() % 16 == workspace.lengths.data_ptr() % 16 for line in plan.lengths)
    assert state.counters.kept.tolist() == kept


def test_a_workspace_of_one_line_is_refused() -> None:
    """Lengths of all layers do not fit where one line was allocated, and the error says what to
    do."""
    state = SpinState(_config(), SHAPE)
    workspace = allocate(SHAPE, ROWS, BLOCKS, "cpu", audits=True)
    batch = page_tables([BLOCKS], BLOCKS), int32([BLOCKS * BLOCK]), torch.tensor([3])
    with pytest.raises(ValueError, match=r"for 4 classes of layers, got 1 lines: allocate"):
        fold_select(state, *batch, workspace=workspace, impl="triton")
