"""Whole lives of requests over SGLang's real radix tree, allocator and request pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sglang_spin.core.step import SpinState
from sglang_spin.engine.events import Event, EventQueue, PagesTaken, RowClosed, RowsOpened
from tests.state.engine import hooked
from tests.state.machine import Lives

OPERATIONS = 20_000
RUN = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,  # the same lives in every run, on every machine
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking takes minutes
    report_multiple_bugs=False,
)
# what must have happened in a run that calls itself a proof, and how often at least
SEEN = {
    "seeded blocks": 300,
    "sparse rows": 10_000,
    "retractions": 10,
    "chunks": 100,
    "re-pointed blocks": 20,
    "writes to a row with a new owner": 50,
    "warm pages compared": 1_000,
}


@pytest.fixture(scope="module", autouse=True)
def _hooks() -> Iterator[None]:
    """SPIN's hooks on SGLang's classes, for this module only."""
    with hooked():
        yield


def test_nothing_is_inherited_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """Over at least 20,000 operations every step keeps what the truth keeps."""
    Lives.operations, Lives.seen = 0, {}
    run_state_machine_as_test(Lives, settings=RUN)
    with capsys.disabled():
        sys.stdout.write(f"\n{Lives.operations} operations: {Lives.seen}\n")
    assert Lives.operations >= OPERATIONS
    assert {key: n for key, n in Lives.seen.items() if n < SEEN.get(key, 0)} == {}
    assert Lives.seen["opened"] == Lives.seen["closed"]


class WindowedLives(Lives):
    """DeepSeek-V4's pools: pages of 256 tokens, and a sliding window with pages of its own."""

    sizes = Lives.sizes._replace(context=6 * 256, pages=9, ratio=4)
    operations, seen = 0, {}


def test_the_same_holds_beside_a_sliding_window(capsys: pytest.CaptureFixture[str]) -> None:
    """With V4's page size and its two allocators in one, whose window pages are no index pages."""
    run_state_machine_as_test(WindowedLives, settings=settings(RUN, max_examples=30))
    with capsys.disabled():
        sys.stdout.write(f"\n{WindowedLives.operations} operations: {WindowedLives.seen}\n")
    assert WindowedLives.operations >= OPERATIONS // 4
    assert WindowedLives.seen["seeded blocks"] >= 50


class _Forgets(EventQueue):
    """Loses every event of one kind."""

    kind: type[Event]

    def put(self, event: Event) -> None:
        if not isinstance(event, self.kind):
            super().put(event)


class _ForgetsTakenPages(_Forgets):
    kind = PagesTaken


class _ForgetsOpenedRows(_Forgets):
    kind = RowsOpened


class _ForgetsClosedRows(_Forgets):
    kind = RowClosed


class _AtOnce(EventQueue):
    """Applies an event when it is reported, before what is in flight."""

    def put(self, event: Event) -> None:
        from sglang_spin.engine import runtime as runtimes

        event.apply(runtimes.current().state)


class _StepLate(EventQueue):
    """Holds events back for one more forward."""

    def __init__(self) -> None:
        super().__init__()
        self.held = EventQueue()

    def drain(self, state: SpinState) -> None:
        self.held.drain(state)
        self.held._events, self._events = self._events, self.held._events


class _NewestFirst(EventQueue):
    """Applies the events of a step in the wrong order."""

    def drain(self, state: SpinState) -> None:
        self._events.reverse()
        super().drain(state)


@pytest.mark.parametrize(
    "queue",
    [_ForgetsTakenPages, _ForgetsOpenedRows, _ForgetsClosedRows, _AtOnce, _StepLate, _NewestFirst],
)
def test_the_lives_notice(queue: type[EventQueue]) -> None:
    """An event that is lost, early, late or out of order makes some step or page differ."""
    broken = type("Broken", (Lives,), {"queue": queue, "seen": {}})
    with pytest.raises(AssertionError, match=r"^(kept|prior|history|counted)"):
        run_state_machine_as_test(broken, settings=RUN)
