"""Top-k against a sort by (score, column), with ties, edges and poison."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.cpu.kernels.topk import topk_columns, topk_slots, topk_slots_of_tokens
from tests.cpu.oracles import best_columns, generator

LENGTHS = (0, 1, 63, 64, 127, 128, 129, 130, 500)


@pytest.mark.parametrize("topk", [1, 64, 128])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_columns_equal_a_stable_sort(topk: int, ties: bool) -> None:
    """Rows of every length select what a sort by falling score, then rising column, selects."""
    scores = torch.randn((len(LENGTHS), 500), generator=generator(1))
    if ties:
        scores = scores.round().relu()
    found = topk_columns(scores, torch.tensor(LENGTHS).int(), topk)
    for r, length in enumerate(LENGTHS):
        want = best_columns(scores[r, :length], topk)
        assert found[r].tolist() == want + [-1] * (topk - len(want))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_any_floats_are_ordered(row: list[float], topk: int) -> None:
    """Infinities, subnormals, negative numbers and both zeros order as numbers; zeros are equal."""
    scores = torch.tensor([row], dtype=torch.float32)
    found = topk_columns(scores, torch.tensor([len(row)]).int(), topk)
    want = best_columns(scores[0], topk)
    assert found[0].tolist() == want + [-1] * (topk - len(want))


def test_columns_outside_the_range_are_not_read() -> None:
    """NaN and infinity before a row's start and after its end change nothing."""
    scores = torch.full((2, 400), float("nan"))
    scores[:, 0::2] = float("inf")
    inner = torch.randn((2, 300), generator=generator(2))
    scores[0, 50:350], scores[1, :200] = inner[0], inner[1, :200]
    starts, lengths = torch.tensor([50, 0]).int(), torch.tensor([300, 200]).int()
    found = topk_columns(scores, lengths, 128, starts)
    assert found[0].tolist() == best_columns(inner[0], 128)
    assert found[1].tolist() == best_columns(inner[1, :200], 128)


def test_width_and_batch_do_not_matter() -> None:
    """A row in a wider, strided, larger matrix selects the same columns."""
    row = torch.randn((1, 300), generator=generator(3)).relu()
    alone = topk_columns(row, torch.tensor([300]).int(), 128)
    wide = torch.full((7, 1024), float("inf"))
    wide[4, :300] = row[0]
    found = topk_columns(wide[:, :900], torch.full((7,), 300).int(), 128)
    assert torch.equal(found[4], alone[0])


def test_slots_follow_the_page_table() -> None:
    """Columns become table[column // 64] * 64 + column % 64; the table's tail is not read."""
    scores = torch.randn((2, 256), generator=generator(4))
    table = torch.tensor([[7, 3, 9, 10**9], [1, 10**9, 10**9, 10**9]]).int()
    lengths = torch.tensor([180, 5]).int()
    out = torch.empty((2, 128), dtype=torch.int32)
    topk_slots(scores, lengths, table, 64, out)
    columns = best_columns(scores[0, :180], 128)
    assert out[0].tolist() == [int(table[0, c // 64]) * 64 + c % 64 for c in columns]
    assert out[1].tolist() == [64 + c for c in range(5)] + [-1] * 123


def test_token_tables_are_shared_by_the_rows_of_a_request() -> None:
    """Row r maps its columns through the table row of its request."""
    scores = torch.randn((3, 200), generator=generator(5))
    tables = torch.stack([torch.randperm(200), torch.randperm(200) + 1000]).int()
    starts = torch.tensor([0, 0, 100]).int()
    lengths = torch.tensor([150, 3, 60]).int()
    found = topk_slots_of_tokens(scores, lengths, tables, torch.tensor([0, 1, 1]), 64, starts)
    assert found[0].tolist() == [int(tables[0, c]) for c in best_columns(scores[0, :150], 64)]
    assert found[1].tolist() == [*tables[1, :3].tolist(), *[-1] * 61]
    assert found[2].tolist() == [*tables[1, :60].tolist(), *[-1] * 4]
