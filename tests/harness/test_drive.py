"""Which request goes when."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from aiohttp import ClientSession

from harness.drive import Load, new_records, run_load
from harness.mock_script import MockScript, MockState
from harness.record import RequestRecord
from harness.wire import completion_body
from tests.harness.helpers import with_mock

QUICK = MockScript(ttft_ms=1, itl_ms=1)


def bodies(count: int) -> list[bytes]:
    """Short requests for 8 tokens."""
    return [completion_body("m", np.arange(20 + i), 8) for i in range(count)]


def drive(script: MockScript, load: Load) -> list[RequestRecord]:
    """Run a load against a mock."""
    records = new_records(load)

    async def use(session: ClientSession, _: MockState) -> None:
        await run_load(session, load, records)

    asyncio.run(with_mock(script, use))
    return records


def in_order(records: Sequence[RequestRecord], chain: Sequence[int]) -> bool:
    """Was each sent after the one before had ended?"""
    return all(records[a].done_ns <= records[b].sent_ns for a, b in pairwise(chain))


def test_turns_wait_for_the_turn_before() -> None:
    """A conversation's requests follow each other; two conversations run side by side."""
    chains = [[0, 1, 2], [3, 4, 5]]
    records = drive(QUICK, Load(bodies(6), 2, 30, 60, chains=chains))
    assert [record.error for record in records] == [None] * 6
    assert all(in_order(records, chain) for chain in chains)
    assert records[3].sent_ns < records[0].done_ns


def test_thinking_between_turns() -> None:
    """think_s passes between an answer and the next turn, and is not counted as held back."""
    records = drive(QUICK, Load(bodies(2), 1, 30, 60, chains=[[0, 1]], think_s=0.1))
    assert records[1].sent_ns - records[0].done_ns >= 0.099e9
    assert records[1].sent_ns - records[1].scheduled_ns < 0.05e9


def test_failed_turn_ends_its_conversation() -> None:
    """What would continue a failed turn is not sent, and says so; others go on."""
    script = MockScript(ttft_ms=1, itl_ms=1, fault="in-band-error", fault_min_tokens=8)
    short = completion_body("m", np.arange(20), 4)
    load = Load([*bodies(2), short], 1, 30, 60, chains=[[0, 1], [2]])
    records = drive(script, load)
    assert records[1].error == "not sent, the turn before it failed"
    assert records[2].error is None


def test_t25_open_loop_keeps_its_schedule() -> None:
    """Requests are due when the schedule says, however long the ones before take."""
    slow = MockScript(ttft_ms=1, itl_ms=30)
    records = drive(slow, Load(bodies(4), 4, 30, 60, due_s=[0.0, 0.05, 0.1, 0.15]))
    due = np.diff([record.scheduled_ns for record in records]) / 1e9
    assert due == pytest.approx([0.05] * 3, abs=1e-6)
    assert all(record.sent_ns >= record.scheduled_ns for record in records)
    assert records[3].sent_ns < records[0].done_ns


def test_t25_what_waits_for_a_stream_is_held_back_visibly() -> None:
    """At the most in flight a due request waits, and its wait is sent - scheduled."""
    slow = MockScript(ttft_ms=1, itl_ms=30)
    records = drive(slow, Load(bodies(2), 1, 30, 60, due_s=[0.0, 0.01]))
    assert records[1].sent_ns >= records[0].done_ns
    assert records[1].sent_ns - records[1].scheduled_ns > 0.1e9


def test_streams_of_a_closed_loop_may_begin_in_turn() -> None:
    """With ramp_s the streams start evenly spread."""
    slow = MockScript(ttft_ms=1, itl_ms=60)
    records = drive(slow, Load(bodies(3), 3, 30, 60, ramp_s=0.3))
    starts = np.diff([record.sent_ns for record in records]) / 1e9
    assert (starts >= 0.09).all()


def test_start_times_must_fit() -> None:
    """One start per conversation, or it is an error."""
    with pytest.raises(ValueError, match="1 start times for 2 conversations"):
        Load(bodies(2), 1, 30, 60, due_s=[0.0])
