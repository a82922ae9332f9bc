"""The streaming client against the scripted server."""

import asyncio
import re
import time
from collections.abc import Sequence

import numpy as np
import pytest
from aiohttp import ClientSession, web

from harness.client import open_session, stream_timeout
from harness.drive import Load, new_records, run_load
from harness.mock_script import MockScript, MockState
from harness.record import RequestRecord
from harness.validity import request_problems
from harness.wire import completion_body
from tests.harness.helpers import with_app, with_mock


def bodies(count: int, *, prompt: int = 100, output: int = 10) -> list[bytes]:
    """Bodies with different prompts."""
    return [
        completion_body("mock", np.arange(prompt, dtype=np.int64) + index, output)
        for index in range(count)
    ]


def load_mock(
    script: MockScript, payload: Sequence[bytes], *, stall_s: float = 30, deadline_s: float = 60
) -> list[RequestRecord]:
    """Records of one closed loop with all bodies in flight."""
    load = Load(payload, len(payload), stall_s, deadline_s)
    records = new_records(load)

    async def use(session: ClientSession, _: MockState) -> None:
        await run_load(session, load, records)

    asyncio.run(with_mock(script, use))
    return records


def problems(records: list[RequestRecord], cached: int = 0) -> str:
    """The problems of requests that asked for 100 in and 10 out."""
    found = request_problems(records, prompt_tokens=100, output_tokens=10, expected_cached=cached)
    return "\n".join(found)


def test_sound_requests() -> None:
    """A sound server gives sound records: counts, order of times, output ids."""
    records = load_mock(MockScript(page_size=200), bodies(3))
    assert problems(records) == ""
    for record in records:
        assert record.scheduled_ns <= record.sent_ns <= record.headers_ns <= record.first_byte_ns
        assert record.first_byte_ns <= record.chunk_t_ns[0] <= record.chunk_t_ns[-1]
        assert record.chunk_t_ns[-1] <= record.done_ns
        assert len(record.output_ids) == 10


@pytest.mark.parametrize("chunk_tokens", [1, 3, 10])
def test_t01_chunks_of_several_tokens(chunk_tokens: int) -> None:
    """However tokens are bundled, the counts of the chunks add up."""
    script = MockScript(chunk_tokens=str(chunk_tokens), page_size=200)
    (record,) = load_mock(script, bodies(1))
    assert record.streamed_tokens == 10
    assert max(record.chunk_tokens) == chunk_tokens
    assert problems([record]) == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("in-band-error", "error in the stream: scripted <b>failure</b>"),
        ("garbage", "not JSON"),
        ("http-500", "HTTP 500"),
        ("no-done", r"without \[DONE\]"),
        ("abort", "finish_reason 'abort'"),
        ("early-stop", "finish_reason 'stop'"),
        ("short", "completion_tokens: 2 of 2 requests"),
    ],
)
def test_t09_t10_t11_broken_streams_are_failures(fault: str, words: str) -> None:
    """An error in the stream, a stream cut short and an early stop never count as success."""
    assert re.search(words, problems(load_mock(MockScript(fault=fault), bodies(2))))


def test_t12_prompt_length_is_the_servers_count() -> None:
    """prompt_tokens is what the server saw, and a difference is a problem."""
    records = load_mock(MockScript(), bodies(1, prompt=101))
    assert "prompt_tokens: 1 of 1 requests, the first is request 0: 101, expected 100" in problems(
        records
    )


@pytest.mark.parametrize("cached", ["absent", "0", "128"])
def test_t17_cached_tokens_three_ways(cached: str) -> None:
    """Unreported is unverifiable, a wrong number is wrong, the right one passes."""
    records = load_mock(MockScript(cached=cached), bodies(1))
    expected = {"absent": "unverifiable", "0": "0, expected 128", "128": ""}[cached]
    assert expected in problems(records, cached=128)
    assert bool(problems(records, cached=128)) == bool(expected)


def test_t18_t34_large_bodies_arrive() -> None:
    """Bodies of 4 MB are accepted and streamed like small ones."""
    prompt = np.full(600_000, 123456, dtype=np.int64)
    body = completion_body("mock", prompt, 10)
    assert len(body) > 4_000_000
    (record,) = load_mock(MockScript(), [body])
    assert record.error is None
    assert record.prompt_tokens == 600_000


def test_t20_no_limit_on_the_whole_request() -> None:
    """A stream may last many times the stall limit as long as it keeps talking."""
    assert stream_timeout().total is None
    script = MockScript(itl_ms=100, page_size=200)
    (record,) = load_mock(script, bodies(1, output=20), stall_s=1)
    assert record.error is None
    assert record.chunk_t_ns[-1] - record.sent_ns > 1.5e9


def test_t21_silent_stream_fails_alone() -> None:
    """A stream that falls silent fails at the stall limit and keeps what it had."""
    (record,) = load_mock(MockScript(fault="stall"), bodies(1), stall_s=0.5)
    assert record.error == "no byte for 0.5 s"
    assert record.streamed_tokens == 5


def test_t21_load_ends_at_its_deadline() -> None:
    """At the deadline what runs is cut and what waits is not sent; all is recorded as failed."""
    payload = bodies(3)
    load = Load(payload, 1, stall_s=30, deadline_s=0.5)
    records = new_records(load)

    async def use(session: ClientSession, _: MockState) -> None:
        await run_load(session, load, records)

    asyncio.run(with_mock(MockScript(fault="stall"), use))
    assert [record.error for record in records] == [
        "cancelled at the load's deadline",
        "not sent before the load's deadline",
        "not sent before the load's deadline",
    ]


def test_t22_more_than_a_hundred_streams() -> None:
    """160 streams are in flight at once, beyond aiohttp's default pool of 100."""
    most = 0

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal most
        waiting.append(request)
        most = max(most, len(waiting))
        if len(waiting) == 160:
            release.set()
        await release.wait()
        return web.Response(status=503)

    async def use(session: ClientSession) -> None:
        load = Load(bodies(160), 160, 30, 60)
        await run_load(session, load, new_records(load))

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/completions", count)])
        await with_app(app, use)

    waiting: list[web.Request] = []
    release = asyncio.Event()
    asyncio.run(main())
    assert most == 160


def test_t26_wall_clock_jump_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the wall clock falling by an hour at every reading, times stay in order."""
    fall = iter(range(0, -(10**9), -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(fall)))
    (record,) = load_mock(MockScript(page_size=200), bodies(1))
    assert problems([record]) == ""
    assert 0 < record.sent_ns <= record.chunk_t_ns[0] < record.chunk_t_ns[-1] <= record.done_ns


def test_t36_bodies_are_sent_as_given_over_one_session() -> None:
    """The bytes that were prepared are the bytes that arrive, once each."""
    received: list[bytes] = []

    async def keep(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(status=503)

    async def use(session: ClientSession) -> None:
        load = Load(payload, 4, 30, 60)
        await run_load(session, load, new_records(load))

    payload = bodies(9)
    app = web.Application()
    app.add_routes([web.post("/v1/completions", keep)])
    asyncio.run(with_app(app, use))
    assert sorted(received) == sorted(payload)


def test_refused_connection_is_a_failed_request() -> None:
    """A server that is gone fails the request and raises nothing."""

    async def main() -> list[RequestRecord]:
        load = Load(bodies(1), 1, 5, 10)
        records = new_records(load)
        async with open_session("http://127.0.0.1:1") as session:
            await run_load(session, load, records)
        return records

    (record,) = asyncio.run(main())
    assert record.error is not None
    assert "Connect" in record.error
