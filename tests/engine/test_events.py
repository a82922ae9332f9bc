"""The event queue: what the scheduler reports reaches the state in order and only when drained."""

from __future__ import annotations

import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.engine.events import (
    CacheFlushed,
    EventQueue,
    PagesTaken,
    RowClosed,
    RowsOpened,
)

SHAPE = Shape(layers=2, rows=3, blocks=8, pages=20, index_topk=64)
PAGES = torch.tensor([4, 5, 6])


def _used_state() -> SpinState:
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    state.open_rows(torch.tensor([1]))
    table = torch.tensor([[4, 5, 6]], dtype=torch.int32)
    plan = state.begin(table, torch.tensor([192], dtype=torch.int32), torch.tensor([1]))
    for layer in range(2):
        state.observe(layer, torch.randn(1, 192), plan)
    return state


def test_nothing_happens_before_the_drain() -> None:
    """A step in flight still belongs to the old owner: reporting alone changes nothing."""
    state, queue = _used_state(), EventQueue()
    queue.put(RowClosed(torch.tensor([1]), PAGES, 192))
    queue.put(RowsOpened(torch.tensor([1])))
    assert int(state.stashed[1]) == 192
    assert state.prior.isnan().all()


def test_a_page_freed_and_taken_in_one_batch_is_cold() -> None:
    """Close, then reuse of one of its pages: that page forgets, the others hand on."""
    state, queue = _used_state(), EventQueue()
    queue.put(RowClosed(torch.tensor([1]), PAGES, 192))
    queue.put(PagesTaken(torch.tensor([5, SHAPE.pages])))
    queue.drain(state)
    assert state.prior[0, [4, 6]].isfinite().all()
    assert state.prior[0, 5].isnan()


def test_a_page_taken_before_the_close_keeps_the_new_history() -> None:
    """The other order: what is written after the page was taken belongs to its new content."""
    state, queue = _used_state(), EventQueue()
    queue.put(PagesTaken(torch.tensor([5])))
    queue.put(RowClosed(torch.tensor([1]), PAGES, 192))
    queue.drain(state)
    assert state.prior[0, 5].isfinite()


def test_a_row_closed_and_reopened_in_one_batch_starts_anew() -> None:
    """The old request's history goes to its pages, and nothing of it stays in the row."""
    state, queue = _used_state(), EventQueue()
    queue.put(RowClosed(torch.tensor([1]), PAGES, 192))
    queue.put(RowsOpened(torch.tensor([1])))
    queue.drain(state)
    assert state.prior[0, 4:7].isfinite().all()
    assert state.history.vertical[:, 1].isnan().all()
    assert bool(state.fresh[1])
    assert int(state.generation[1]) == 2


def test_a_step_past_the_end_of_a_request_hands_nothing_on() -> None:
    """The scheduler runs a step ahead: what a finished request's last step saw is not its own."""
    state, queue = _used_state(), EventQueue()
    queue.put(RowClosed(torch.tensor([1]), PAGES[:2], 191))
    queue.drain(state)
    assert state.prior.isnan().all()


def test_a_flush_forgets_every_page() -> None:
    """Nothing survives /flush_cache."""
    state, queue = _used_state(), EventQueue()
    queue.put(RowClosed(torch.tensor([1]), PAGES, 192))
    queue.put(CacheFlushed())
    queue.drain(state)
    assert state.prior.isnan().all()
