"""Field bugs of other engines' indexers in scores and selection, turned on fold_select.

Each story is a real report.
"""

from __future__ import annotations

import pytest
import torch

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape
from sglang_spin.kernels.fold_select import allocate, fold_select
from tests.kernels.small_steps import (
    BLOCKS,
    LAYERS,
    PAGES,
    ROWS,
    kept_blocks,
    score_all,
    small_twins,
    step,
    warm,
)
from tests.kernels.twins import give_history, int32, page_tables

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_a02_rows_whose_scores_are_all_nan() -> None:
    """vLLM 49896: NaN logits made top-k emit garbage indices; here such rows keep valid blocks."""
    twins = small_twins()
    warm(twins, {1: 20, 2: 20})
    score_all(twins, step(twins, {1: 20 * BLOCK - 2, 2: 20 * BLOCK - 2}), float("nan"))
    plan = step(twins, {1: 20 * BLOCK - 1, 2: 20 * BLOCK - 1})
    for index in range(2):
        kept = kept_blocks(plan, 1, index)
        assert kept == sorted(set(kept))
        assert 0 <= kept[0] <= kept[-1] < 20


def test_a03_lengths_around_every_page_boundary() -> None:
    """vLLM 47827: garbage from exactly 64 pages on; every length around a boundary is exact."""
    twins = small_twins()
    for boundary in (1, 2, 17):
        lengths = {r: boundary * BLOCK + r - 2 for r in (1, 2, 3)}
        warm(twins, dict.fromkeys((1, 2, 3), boundary))
        plan = step(twins, lengths)
        for index, length in enumerate(lengths.values()):
            count = -(-length // BLOCK)
            kept = kept_blocks(plan, 0, index)
            assert kept[-1] == count - 1
            assert int(plan.lengths[0, index]) == length - BLOCK * (count - len(kept))


def test_a04_rows_of_length_zero() -> None:
    """vLLM 51499: a batch of zero lengths made the scheduler read out of bounds."""
    twins = small_twins()
    warm(twins, {1: 0, 2: 12})
    assert step(twins, {1: 0}).lengths[0].tolist() == [0]
    mixed = step(twins, {1: 0, 2: 12 * BLOCK})
    assert mixed.lengths[0].tolist() == [0, 6 * BLOCK]


def test_a05_lengths_that_are_not_contiguous() -> None:
    """vLLM 40987: lengths sliced out of a multi-token tensor were read as if dense."""
    twins = small_twins()
    warm(twins, {1: 20, 2: 30})
    lengths = int32([1280, 7, 9, 1920, 7, 9])[::3]
    rows = torch.tensor([1, 5, 2, 5])[::2]
    plan = twins.begin(page_tables([20, 30], 31), lengths, rows)
    assert plan.lengths[0].tolist() == [640, 960]


def test_a09_every_layer_reads_its_own_state() -> None:
    """ATOM 1466: a dropped storage offset let every layer read layer 0."""
    twins = small_twins()
    rising = torch.arange(20, dtype=torch.float32)
    give_history(twins, 1, torch.stack([rising, -rising]))
    plan = step(twins, {1: 20 * BLOCK})
    assert kept_blocks(plan, 0, 0) == [0, *range(11, 20)]
    assert kept_blocks(plan, 1, 0) == [*range(9), 19]


def test_a11_rows_do_not_see_each_other() -> None:
    """sglang 12457: one request's logits leaked into another's row; alone or together is equal."""
    lengths = {1: 10 * BLOCK, 2: 21 * BLOCK, 3: 5 * BLOCK}
    together = small_twins()
    warm(together, {1: 10, 2: 21, 3: 5})
    expected = step(together, lengths)
    for index, (row, length) in enumerate(lengths.items()):
        alone = small_twins()
        warm(alone, {1: 10, 2: 21, 3: 5})
        plan = step(alone, {row: length})
        assert [kept_blocks(plan, i, 0) for i in (0, 1)] == [
            kept_blocks(expected, i, index) for i in (0, 1)
        ]


def test_a12_pins_of_a_row_shorter_than_the_pins() -> None:
    """sglang 30175: pins of a one-block row were scattered into its neighbour."""
    twins = small_twins()
    warm(twins, {1: 1, 2: 20, 3: 1})
    plan = step(twins, {1: 5, 2: 20 * BLOCK, 3: BLOCK})
    assert [kept_blocks(plan, 0, i) for i in (0, 2)] == [[0], [0]]
    assert plan.lengths[0].tolist() == [5, 10 * BLOCK, BLOCK]


def test_a13_scratch_follows_blocks_and_not_entries() -> None:
    """sglang 39095: unbudgeted [rows, context] scores ran out of memory at 1M entries."""
    layers, rows, width = 60, 96, 16384
    shape = Shape(layers, rows, width, 10, 2048)
    workspace = allocate(shape, rows, width, "meta")
    assert workspace.nbytes == 8 * layers * rows * width + 4 * rows + 4 * rows


def test_b14_low_contrast_rows_lose_no_block() -> None:
    """sglang 36807: near-constant rows overflowed a bucket and dropped candidates silently."""
    twins = small_twins()
    noise = torch.randn(LAYERS, 47, generator=torch.Generator().manual_seed(2))
    give_history(twins, 1, 7 + noise * 1e-6)
    kept = kept_blocks(step(twins, {1: 47 * BLOCK}), 1, 0)
    assert len(kept) == 47 - 23


def test_b15_ties_among_both_zeros_go_to_the_lower_block() -> None:
    """sglang 30645: mostly zero rows put -1 inside the length; zeros of both signs tie."""
    twins = small_twins(policy="prev-iter")
    zeros = torch.zeros(LAYERS, 40)
    zeros[:, ::2] = -0.0
    give_history(twins, 1, zeros)
    assert kept_blocks(step(twins, {1: 40 * BLOCK}), 0, 0) == [*range(19), 39]


def test_b16_repeats_and_row_orders_agree() -> None:
    """vLLM 55122: ties broken by arrival made ranks diverge; 20 repeats in two orders agree."""
    scores = torch.zeros(LAYERS, 12)
    plans = []
    for repeat in range(20):
        twins = small_twins()
        rows = [1, 2] if repeat % 2 else [2, 1]
        give_history(twins, 1, scores)
        give_history(twins, 2, scores + 1)
        plan = fold_select(
            twins.kernel,
            page_tables([12, 12], 12),
            int32([12 * BLOCK] * 2),
            torch.tensor(rows),
            impl="triton",
        )
        plans.append([plan.blocks[:, rows.index(row)] for row in (1, 2)])
    for plan in plans[1:]:
        assert all(torch.equal(a, b) for a, b in zip(plan, plans[0], strict=True))


@pytest.mark.parametrize("width", [20, 21, 47, 48])
def test_b17_tables_wider_than_the_row(width: int) -> None:
    """flashinfer 2486: a table of another width than the scores was read out of bounds."""
    twins = small_twins()
    warm(twins, {1: 20})
    plan = twins.begin(page_tables([20], width), int32([1270]), torch.tensor([1]))
    assert plan.pages.shape == (LAYERS, 1, width)
    assert len(kept_blocks(plan, 0, 0)) == 10


@pytest.mark.parametrize("topk", [64, 512, 1024, 2048, 2051])
def test_b18_enough_entries_for_any_k(topk: int) -> None:
    """sglang 39431: code fixed to one K; whatever K is, min(length, K) entries stay kept."""
    twins = small_twins(sparsity=0.9, shape=Shape(LAYERS, ROWS, BLOCKS, PAGES, topk))
    warm(twins, {1: 47, 2: 9})
    lengths = {1: 46 * BLOCK + 1, 2: 8 * BLOCK + 1}
    plan = step(twins, lengths)
    for kept, length in zip(plan.lengths[0].tolist(), lengths.values(), strict=True):
        assert kept >= min(length, topk)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513])
def test_b19_rows_no_longer_than_k_keep_all(length: int) -> None:
    """Automodel 3035: lengths around K crashed or skipped; such rows lose nothing."""
    twins = small_twins(sparsity=0.9, shape=Shape(LAYERS, ROWS, BLOCKS, PAGES, 512))
    warm(twins, {1: -(-length // BLOCK), 2: 40})
    assert int(step(twins, {1: length, 2: 40 * BLOCK}).lengths[0, 0]) == length


def test_b21_scores_one_ulp_apart() -> None:
    """vLLM 27568: values that differ in their last bit were ranked at random."""
    twins = small_twins(policy="prev-iter")
    bits = torch.full((LAYERS, 40), 0x3F800000, dtype=torch.int32)
    bits += torch.randperm(40, generator=torch.Generator().manual_seed(3)).int()
    scores = bits.view(torch.float32)
    give_history(twins, 1, scores)
    kept = kept_blocks(step(twins, {1: 40 * BLOCK}), 0, 0)
    best = scores[0, 1:39].topk(18).indices + 1
    assert kept == sorted([0, 39, *best.tolist()])


def test_b23_the_first_block_stays_whatever_its_score() -> None:
    """mlx-lm 1552: losing the attention sink collapsed generation; block 0 is always kept."""
    twins = small_twins(sparsity=0.9)
    scores = torch.randn(LAYERS, 40)
    scores[:, 0] = -1e30
    give_history(twins, 1, scores)
    assert kept_blocks(step(twins, {1: 40 * BLOCK}), 0, 0)[0] == 0
