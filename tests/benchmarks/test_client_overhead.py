"""The clients' benchmark: its server's stream, its verdicts, and one small case of our client."""

import os
from typing import Any

import pytest

from benchmarks.client_overhead.__main__ import ceilings, gave_up, verdict
from benchmarks.client_overhead.clients import Case, available, ours
from benchmarks.client_overhead.firehose import sse_events
from benchmarks.client_overhead.measure import run_case
from benchmarks.client_overhead.tree import cpu_seconds
from harness.record import RequestRecord
from harness.sse import SseParser
from harness.stream import take_event


def unframed(data: bytes) -> bytes:
    """The content of HTTP chunks; they must end with an empty one."""
    content = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        content, data = content + rest[:length], rest[length + 2 :]
        if not length:
            assert not data
            return content
    raise AssertionError("the last chunk is missing")


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_server_streams_what_a_client_reads(chat: bool, usage: bool) -> None:
    """The events are a sound stream of the right tokens, with usage only if it was asked for."""
    record = RequestRecord(index=0)
    content = unframed(b"".join(sse_events(5, chat, usage)))
    for event in SseParser().feed(content):
        take_event(record, event, 1)
    assert (record.streamed_tokens, record.finish_reason, record.saw_done) == (5, "length", True)
    assert record.itl_basis == ("usage" if usage else "chunk")


def test_failed_client_is_not_asked_for_more() -> None:
    """Who failed with 1,000 streams is asked for fewer, not for as many; others are."""
    rows = [row(streams=1000, verdict="failed"), row(client="b", streams=5, verdict="fell behind")]
    assert gave_up(rows, "a", 1000)
    assert gave_up(rows, "a", 5000)
    assert not gave_up(rows, "a", 96)
    assert not gave_up(rows, "b", 5000)


def row(**changes: Any) -> dict[str, Any]:
    """A client that kept up."""
    base = {"client": "a", "streams": 10, "streams_at_once": 10, "offered_events_s": 100}
    return (
        base
        | {"itl_ms": 100.0, "itl_p50_ms": 105.0, "failed": 0, "server_late_p99_ms": 1.0}
        | changes
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "kept up"),
        ({"itl_p50_ms": 111.0}, "fell behind"),
        ({"itl_p50_ms": None}, "fell behind"),
        ({"failed": 1}, "fell behind"),
        ({"completed": 9}, "fell behind"),
        ({"streams_at_once": 9}, "fell behind"),
        ({"server_late_p99_ms": 51.0, "itl_p50_ms": 150.0}, "undecided"),
        ({"error": "died"}, "failed"),
    ],
    ids=str,
)
def test_verdict_on_a_client(changes: dict[str, Any], expected: str) -> None:
    """A slow median, a failure, fewer streams are falling behind; a late server decides nothing."""
    assert verdict(row(**changes)) == expected


def test_ceiling_is_of_the_cases_that_were_kept_up_with() -> None:
    """Ceilings are the largest loads a client kept up with, 0 if there is none."""
    kept, fell = {"verdict": "kept up"}, {"verdict": "fell behind"}
    rows = [
        row(**kept),
        row(offered_events_s=900, **fell),
        row(streams=50, offered_events_s=80, **kept),
        row(client="b", **fell),
    ]
    assert ceilings(rows) == {
        "a": {"events_per_s": 100, "streams": 50},
        "b": {"events_per_s": 0, "streams": 0},
    }


def test_clients_that_are_not_there_are_named() -> None:
    """What cannot be run is left out with a line that says how to give it."""
    clients, missing = available("no-such-program", None)
    assert [client.name for client in clients] == ["ours"]
    assert ["--aiperf" in missing[0], "--sglang-path" in missing[1]] == [True, True]


def test_own_processor_time_is_found() -> None:
    """The tree of this process has used at least its own time."""
    before = cpu_seconds(os.getpid())
    sum(range(5_000_000))
    assert cpu_seconds(os.getpid()) >= before >= 0


@pytest.mark.slow
def test_one_small_case_of_our_client() -> None:
    """Forty streams of thirty tokens all arrive, all at once."""
    found = run_case(ours(), Case(40, 30, 60))
    assert "error" not in found
    assert (found["failed"], found["events"], found["streams_at_once"]) == (0, 1200, 40)
