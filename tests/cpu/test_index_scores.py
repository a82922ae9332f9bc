"""Index scores against fp64, and the bit-stability that caching and compaction rely on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_spin.cpu.kernels.index_scores import paged_index_scores, ragged_index_scores
from tests.cpu.oracles import (
    DIM,
    PAGE,
    fp8,
    generator,
    index_pages,
    index_scores,
    page_keys,
    score_error_bound,
)

LENGTHS = (0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 300)


def _gates(rows: int, heads: int, seed: int) -> Tensor:
    return torch.randn((rows, heads), generator=generator(seed))


def _paged(heads: int, lengths: tuple[int, ...], spare: int = 0) -> tuple[Tensor, ...]:
    rows, width = len(lengths), -(-max(lengths) // PAGE) + spare
    pages = index_pages(rows * width + 1, seed=3)
    table = torch.randperm(rows * width, generator=generator(4)).view(rows, width).int() + 1
    return fp8((rows, heads, DIM), 5), pages, _gates(rows, heads, 6), torch.tensor(lengths), table


@pytest.mark.parametrize("heads", [1, 16, 32, 33, 64])
def test_paged_scores_equal_the_formula(heads: int) -> None:
    """Every column below a row's length holds the formula's value within fp32 rounding."""
    q, pages, weights, lengths, table = _paged(heads, LENGTHS)
    logits = paged_index_scores(q, pages, weights, lengths.int(), table, table.shape[1] * PAGE)
    assert logits.shape == (len(LENGTHS), table.shape[1] * PAGE)
    assert logits.stride(0) % 4 == 0
    for r, length in enumerate(LENGTHS):
        keys, scales = page_keys(pages, table[r])
        want = index_scores(q[r], keys, scales, weights[r])[:length]
        bound = score_error_bound(q[r], keys, scales, weights[r])[:length]
        assert ((logits[r, :length].double() - want).abs() <= bound).all()


@pytest.mark.parametrize("heads", [3, 32])
def test_ragged_scores_equal_the_formula(heads: int) -> None:
    """Every column in a token's range holds the formula's value within fp32 rounding."""
    n = 333
    starts = torch.tensor([0, 0, 5, 63, 64, 65, 100, 332, 333, 0]).int()
    ends = torch.tensor([1, 64, 70, 64, 64, 200, 333, 333, 333, 333]).int()
    keys, scales = fp8((n, DIM), 1), torch.rand(n, generator=generator(2)) + 0.1
    q, weights = fp8((len(starts), heads, DIM), 3), _gates(len(starts), heads, 4)
    logits = ragged_index_scores(q, keys, scales, weights, starts, ends)
    assert logits.shape == (len(starts), n)
    for t, (low, high) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        want = index_scores(q[t], keys, scales, weights[t])[low:high]
        bound = score_error_bound(q[t], keys, scales, weights[t])[low:high]
        assert ((logits[t, low:high].double() - want).abs() <= bound).all()


def test_nothing_past_the_length_is_read_or_written() -> None:
    """A row's scores ignore the page's tail, the table's tail and the pages they name."""
    lengths = (1, 65, 190)
    q, pages, weights, lens, table = _paged(32, lengths, spare=3)
    clean = paged_index_scores(q, pages, weights, lens.int(), table, table.shape[1] * PAGE)
    poisoned = pages.clone()
    for r, length in enumerate(lengths):
        whole, part = divmod(length, PAGE)
        last = poisoned[table[r, whole]]
        last[part * DIM : PAGE * DIM] = 0x7F
        last[PAGE * DIM + 4 * part :] = 0xFF  # NaN scales
        table[r, whole + 1 :] = 10**9
    dirty = paged_index_scores(q, poisoned, weights, lens.int(), table, table.shape[1] * PAGE)
    for r, length in enumerate(lengths):
        assert torch.equal(dirty[r, :length], clean[r, :length])


def test_a_score_has_the_same_bits_wherever_it_is_computed() -> None:
    """Batch size, table width and column leave a score's bits alone."""
    q, pages, weights, lens, table = _paged(32, (300, 300, 300))
    width = table.shape[1] * PAGE
    batch = paged_index_scores(q, pages, weights, lens.int(), table, width)[:, :300]
    for r in range(3):
        alone = paged_index_scores(
            q[r : r + 1], pages, weights[r : r + 1], lens[:1].int(), table[r : r + 1], width
        )
        assert torch.equal(alone[0, :300], batch[r])
    kept = torch.tensor([0, 2, 4])
    compact = table[:, kept].contiguous()
    wide = torch.cat([compact, compact], 1)
    for view in (compact, wide):
        short = paged_index_scores(
            q, pages, weights, torch.full((3,), 2 * PAGE + 44).int(), view, view.shape[1] * PAGE
        )
        for j, page in enumerate(kept.tolist()):
            end = min(PAGE, 300 - page * PAGE)
            assert torch.equal(
                short[:, j * PAGE : j * PAGE + end], batch[:, page * PAGE : page * PAGE + end]
            )


def test_prefill_and_decode_agree_bit_for_bit() -> None:
    """A prefill token at any offset in the packed keys gets the decode row's scores."""
    q, pages, weights, lens, table = _paged(32, (200,))
    decode = paged_index_scores(q, pages, weights, lens.int(), table, table.shape[1] * PAGE)
    keys, scales = page_keys(pages, table[0])
    for shift in (0, 1, 37, 64):
        packed = torch.cat([fp8((shift, DIM), 9), keys[:200].to(torch.float8_e4m3fn)])
        widths = torch.cat([torch.ones(shift), scales[:200].float()])
        start = torch.tensor([shift] * 40).int()
        logits = ragged_index_scores(
            q.expand(40, -1, -1), packed, widths, weights.expand(40, -1), start, start + 200
        )
        assert all(torch.equal(row[shift:], decode[0, :200]) for row in logits)


def test_an_empty_batch_is_no_error() -> None:
    """No rows, or rows of length 0 only, return uninitialised logits of the right shape."""
    q, pages, weights, _, table = _paged(32, (64,))
    empty = paged_index_scores(q[:0], pages, weights[:0], torch.zeros(0).int(), table[:0], 128)
    assert empty.shape == (0, 128)
    idle = paged_index_scores(q, pages, weights, torch.zeros(1).int(), table, 64)
    assert idle.shape == (1, 64)
