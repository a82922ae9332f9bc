"""The stash of a layer's scores, in torch and in Triton."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SUSPECT
from sglang_spin.core.slot_history import SlotHistory
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.kernels.observe import observe
from sglang_spin.kernels.observe import triton as kernel
from tests.kernels.twins import Twins, block_history, int32

LAYERS, ROWS, BLOCKS = 2, 5, 12
SHAPE = Shape(LAYERS, ROWS, BLOCKS, 40, 100)
GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several tiles without rows of hundreds of blocks."""
    monkeypatch.setattr(kernel, "TILE", 2)


def _plan(lengths: list[int], rows: list[int], width: int, seed: int = 0) -> Plan:
    """A plan whose kept blocks are random and ascending, 0 past the kept ones."""
    rng = np.random.default_rng(seed)
    blocks = torch.zeros(LAYERS, len(rows), width, dtype=torch.int32)
    for layer in range(LAYERS):
        for i, length in enumerate(lengths):
            count = -(-length // BLOCK)
            chosen = np.sort(rng.choice(BLOCKS, count, replace=False))
            blocks[layer, i, :count] = torch.from_numpy(chosen)
    each = int32(lengths).expand(LAYERS, -1)
    return Plan(torch.zeros_like(blocks), each, blocks, torch.tensor(rows))


def _logits(plan: Plan, seed: int = 0, garbage: float = float("nan")) -> Tensor:
    n, width = plan.blocks.shape[1:]
    logits = torch.randn(n, width * BLOCK, generator=torch.Generator().manual_seed(seed))
    for i, length in enumerate(plan.lengths[0].tolist()):
        logits[i, length:] = garbage
    return logits


def _twins() -> Twins:
    return Twins(SpinConfig(enabled=True), SHAPE)


def _scores(twins: Twins, layer: int, row: int) -> Tensor:
    return block_history(twins.kernel).recent[layer, row].view(torch.float32)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(0, 9 * BLOCK), min_size=1, max_size=3),
    odd=st.sampled_from([None, *GARBAGE, 1.1e30, -1.1e30, 0.0, -0.0]),
    slack=st.integers(0, 3),
)
def test_any_scores_are_stashed_to_the_same_bits(
    seed: int, lengths: list[int], odd: float | None, slack: int
) -> None:
    """Whatever the lengths, the tails and an odd score inside, the state equals the reference's."""
    twins = _twins()
    plan = _plan(lengths, [3, 1, 4][: len(lengths)], 9 + slack, seed)
    rng = np.random.default_rng(seed)
    logits = _logits(plan, seed % 1000, float(rng.choice(GARBAGE)))
    if odd is not None:
        logits[:, rng.integers(0, logits.shape[1])] = odd
    twins.observe(int(rng.integers(0, LAYERS)), logits, plan)


def test_a01_tails_do_not_count() -> None:
    """sglang 33247: what stands past the length differs between scorers; it changes nothing."""
    plan = _plan([70, 3 * BLOCK], [1, 2], 5)
    states = []
    for garbage in (0.0, *GARBAGE):
        twins = _twins()
        twins.observe(0, _logits(plan, garbage=garbage), plan)
        states.append(block_history(twins.kernel).recent)
    assert all(torch.equal(state, states[0]) for state in states)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.1e30])
def test_a02_scores_that_are_no_numbers_make_their_block_suspect(bad: float) -> None:
    """vLLM 49896: a NaN score travelled on as an index; here it marks its own block alone."""
    twins = _twins()
    plan = _plan([4 * BLOCK], [2], 6)
    logits = _logits(plan)
    logits[0, BLOCK + 5] = bad
    twins.observe(1, logits, plan)
    kept = plan.blocks[1, 0, :4].long()
    suspect = _scores(twins, 1, 2)[kept] == SUSPECT
    assert suspect.tolist() == [False, True, False, False]


def test_a02_minus_infinity_beside_a_number_is_no_reason_for_suspicion() -> None:
    """A scorer that masks entries with -inf leaves the maximum of the others."""
    twins = _twins()
    plan = _plan([BLOCK], [2], 1)
    logits = torch.full((1, BLOCK), -float("inf"))
    logits[0, 9] = -3.5
    twins.observe(0, logits, plan)
    assert _scores(twins, 0, 2)[plan.blocks[0, 0, 0]] == -3.5


def test_a03_lengths_around_every_page_boundary() -> None:
    """vLLM 47827: one entry more or less than a page is counted to the right block."""
    for length in (1, 63, 64, 65, 127, 128, 129, 576):
        plan = _plan([length], [1], 9)
        logits = torch.zeros(1, 9 * BLOCK)
        logits[0, length - 1], logits[0, length:] = 5.0, 9.0
        twins = _twins()
        twins.observe(0, logits, plan)
        last = plan.blocks[0, 0, -(-length // BLOCK) - 1]
        assert _scores(twins, 0, 1)[last] == 5.0


def test_a09_a_layer_writes_its_own_stash() -> None:
    """ATOM 1466: with a storage offset dropped, every layer would write layer 0."""
    twins = _twins()
    plan = _plan([3 * BLOCK], [1], 3)
    twins.observe(1, _logits(plan), plan)
    assert bool(_scores(twins, 0, 1).isnan().all())
    assert int((~_scores(twins, 1, 1).isnan()).sum()) == 3


def test_a11_rows_of_disjoint_scores_do_not_mix() -> None:
    """sglang 12457: one request's scores were read as another's."""
    twins = _twins()
    plan = _plan([3 * BLOCK, 4 * BLOCK], [1, 2], 4)
    logits = torch.stack([torch.full((4 * BLOCK,), 100.0), torch.full((4 * BLOCK,), -100.0)])
    twins.observe(0, logits, plan)
    for row, value in ((1, 100.0), (2, -100.0)):
        scores = _scores(twins, 0, row)
        assert bool((scores[~scores.isnan()] == value).all())


@pytest.mark.parametrize("stride", [640, 1027])
def test_c25_logits_with_a_wide_row_stride(stride: int) -> None:
    """b12x 45: strides of a padded allocation were ignored; columns between rows are not read."""
    twins = _twins()
    plan = _plan([9 * BLOCK, 9 * BLOCK - 1, 5], [1, 2, 3], 9)
    wide = torch.full((3, stride), float("nan"))
    wide[:, : 9 * BLOCK] = _logits(plan)
    twins.observe(0, wide[:, : 9 * BLOCK], plan)
    assert not bool((_scores(twins, 0, 1) == SUSPECT).any())


def test_d30_padding_rows_write_nothing() -> None:
    """sglang 33059: padded rows updated state; row 0 and every other row stay as they were."""
    twins = _twins()
    plan = _plan([BLOCK, 3 * BLOCK, 5], [0, 2, 0], 3)
    before = block_history(twins.kernel).recent.clone()
    twins.observe(0, _logits(plan), plan)
    after = block_history(twins.kernel).recent
    changed = (after != before).any(-1).nonzero().tolist()
    assert changed == [[0, 2]]


def test_slots_of_kept_blocks_are_the_reference_bits() -> None:
    """spin-paper: every slot of a kept block, untrusted ones suspect, those past the length NaN."""
    states = [SpinState(SpinConfig(enabled=True, policy="spin-paper"), SHAPE) for _ in range(2)]
    plan = _plan([5 * BLOCK - 9, 70], [1, 3], 7)
    logits = _logits(plan)
    logits[0, 100], logits[1, 3] = float("nan"), -2e30
    for state, impl in zip(states, ("reference", "triton"), strict=True):
        observe(state, 1, logits, plan, impl=impl)
    for i, row in enumerate((1, 3)):
        kept = plan.blocks[1, i, : -(-int(plan.lengths[1, i]) // BLOCK)].long()
        expected, stash = (_slots(state, row)[kept] for state in states)
        assert torch.equal(stash.view(torch.int32), expected.view(torch.int32))
    assert bool(_slots(states[1], 2).isnan().all())


@pytest.mark.parametrize(
    ("layer", "logits", "message"),
    [
        (2, torch.zeros(1, 128), "layer must be 0 to 1, got 2"),
        (0, torch.zeros(1, 127), "logits must be float32 [1, >= 128], got [1, 127]"),
        (0, torch.zeros(1, 128).double(), "logits must be float32 and contiguous in a row"),
        (0, torch.zeros(1, 256)[:, ::2], "with strides (256, 2)"),
    ],
)
def test_bad_arguments_are_named(layer: int, logits: Tensor, message: str) -> None:
    """A wrong argument is refused with its name, what was expected and what came."""
    plan = _plan([5], [1], 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        observe(SpinState(SpinConfig(enabled=True), SHAPE), layer, logits, plan)


def _slots(state: SpinState, row: int) -> Tensor:
    assert isinstance(state.history, SlotHistory)
    return state.history.stash[1, row].view(BLOCKS, BLOCK)
