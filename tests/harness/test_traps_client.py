"""What other load generators get wrong about their client (T18-T26, T33-T36), against the mock."""

import ast
import asyncio
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientSession

import harness
from harness import metrics
from harness.client import UPLOAD_PIECE_BYTES, stream_completion
from harness.control import flush
from harness.figures import run_figures
from harness.metric_map import SGLANG
from harness.mock_script import MockScript, MockState
from harness.record import RequestRecord
from harness.scrape import scraping
from harness.wire import COMPLETIONS
from tests.harness.helpers import MS, make_spec, with_mock
from tests.harness.traps import bodies, problems, stream_all, streamed, whole_run

LARGE = COMPLETIONS.body("mock", np.full(2_000_000, 123456, dtype=np.int64), 12)


def test_t18_large_body_leaves_the_loop_to_others() -> None:
    """While 14 MB go out, the loop turns at least once per megabyte."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def use(session: ClientSession, _: MockState) -> list[RequestRecord]:
        counting = asyncio.ensure_future(count_turns())
        try:
            return await stream_all(session, [LARGE])
        finally:
            counting.cancel()

    (record,) = asyncio.run(with_mock(MockScript(page_size=1 << 20), use))
    assert (record.error, record.prompt_tokens) == (None, 2_000_000)
    assert record.sent_ns < record.uploaded_ns < record.chunk_t_ns[0]
    assert turns > len(LARGE) / (16 * UPLOAD_PIECE_BYTES)


def test_t20_request_of_many_stall_limits() -> None:
    """A stream of 30 stall limits in length succeeds: only its silence is bounded."""
    (record,) = streamed(itl_ms=60, output=12, stall_s=0.5, ttft_ms=400)
    assert record.error is None
    assert record.done_ns - record.sent_ns > 1000 * MS


def test_t20_slow_upload_is_not_a_silent_stream() -> None:
    """A body that takes longer than the stall limit but moves is no stall."""
    script = MockScript(upload_kib_s=len(LARGE) / 1024 / 0.6, page_size=1 << 20)

    async def use(session: ClientSession, _: MockState) -> list[RequestRecord]:
        return await stream_all(session, [LARGE], stall_s=5)

    (record,) = asyncio.run(with_mock(script, use))
    assert record.error is None
    assert record.chunk_t_ns[0] - record.sent_ns > 600 * MS


def test_t21_body_that_nobody_takes() -> None:
    """A server that accepts the connection and reads nothing fails the request, and it is said."""

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.transport.abort()

    async def main() -> RequestRecord:
        server = await asyncio.start_server(hold, "127.0.0.1", limit=1024)
        port = server.sockets[0].getsockname()[1]
        record = RequestRecord(index=0)
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            await stream_completion(session, LARGE, record, 0.5)
        over.set()
        await asyncio.sleep(0.1)
        server.close()
        return record

    over = asyncio.Event()
    assert asyncio.run(main()).error == "the server took no byte of the body for 0.5 s"


def test_t21_silent_stream_ends_the_run_with_what_there_was() -> None:
    """With every other stream silent the run ends, invalid, and keeps the tokens that came."""
    run = whole_run(fault="stall", fault_every=2, spec={"limits": {"stall_s": 0.5}})
    assert any("no byte for 0.5 s" in problem for problem in run.problems)
    assert sorted(record.streamed_tokens for record in run.records) == [6, 12]


def test_t22_scraper_and_control_beside_many_streams() -> None:
    """With 120 streams open, metrics are read and control answers: nothing waits for a pool."""

    async def use(session: ClientSession, state: MockState) -> tuple[int, list[RequestRecord]]:
        async with scraping(session, SGLANG, period_s=0.05) as telemetry:
            loading = asyncio.ensure_future(stream_all(session, bodies(120)))
            while state.running < 120:
                await asyncio.sleep(0.01)
            running = telemetry.total(SGLANG.running)
            while running is None or np.nanmax(running) < 120:
                await asyncio.sleep(0.01)
                running = telemetry.total(SGLANG.running)
            records = await loading
            await flush(session, 5)
        return len(telemetry.gaps), records

    gaps, records = asyncio.run(with_mock(MockScript(page_size=1000, ttft_ms=800), use))
    assert gaps == 0
    assert problems(records) == ""


def test_t23_blocked_loop_is_the_clients_fault() -> None:
    """A client that blocks its own loop is named as the limit, with default limits."""

    async def block(state: MockState) -> None:
        while True:
            # only in the load; the phases before it are not timed
            if state.served > 5:
                time.sleep(0.02)
            await asyncio.sleep(0.03)

    spec = {"limits": {"loop_lag_share": 0.2}, "workload": {"output_tokens": 20}}
    run = whole_run(meanwhile=block, spec=spec, itl_ms=40)
    assert any(problem.startswith("client_limited") for problem in run.problems)


def test_t25_time_in_the_clients_queue_is_kept() -> None:
    """A request held back after it was due shows the wait, and TTFT does not swallow it."""

    async def use(session: ClientSession, _: MockState) -> RequestRecord:
        record = RequestRecord(index=0, scheduled_ns=time.perf_counter_ns())
        await asyncio.sleep(0.2)
        await stream_completion(session, bodies(1)[0], record, 5)
        return record

    record = asyncio.run(with_mock(MockScript(page_size=1000), use))
    assert metrics.queue_ns(record) >= 200 * MS
    assert record.scheduled_ns + 200 * MS <= record.sent_ns <= record.chunk_t_ns[0]


def test_t30_windows_stand_side_by_side() -> None:
    """A run reports its rate in the full batch, at 95 % of it, and over the whole run."""
    spec = make_spec()
    run = whole_run()
    figures = run_figures(run, spec)["output_tok_s_by_window"]
    assert run.problems == []
    assert set(figures) >= {"full_batch", "occupancy_95", "full_run"}
    assert all(figures.values())


def test_t33_large_conversations_do_not_deadlock() -> None:
    """Four bodies of 14 MB at once, to a slow reader, all end; no process pool is in the way."""

    async def use(session: ClientSession, _: MockState) -> list[RequestRecord]:
        return await stream_all(session, [LARGE] * 4)

    script = MockScript(upload_kib_s=len(LARGE) / 1024 / 0.2, page_size=1 << 20)
    records = asyncio.run(with_mock(script, use))
    assert [record.error for record in records] == [None] * 4
    for path in Path(harness.__file__).parent.glob("*.py"):
        imported = [
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        assert "multiprocessing" not in imported, path


def test_t34_body_of_fourteen_megabytes() -> None:
    """The mock takes bodies far beyond its framework's default limit of 1 MiB."""

    async def use(session: ClientSession, _: MockState) -> int:
        async with session.post("/v1/completions", data=BytesIO(LARGE)) as response:
            return response.status

    assert asyncio.run(with_mock(MockScript(page_size=1 << 20), use)) == 200


def test_t36_all_starts_lie_before_the_first_token() -> None:
    """Ninety-six requests go out together: the last is sent before the first is answered."""
    records = streamed(96, ttft_ms=2000, output=2)
    assert {record.error for record in records} == {None}
    assert max(r.uploaded_ns for r in records) < min(r.chunk_t_ns[0] for r in records)
    assert 0 < metrics.send_spread_ns(records, 96) < 2000 * MS


@pytest.mark.parametrize("wire", ["completions", "chat", "generate"])
def test_every_format_gives_the_same_record(wire: str) -> None:
    """Counts, cache state, reason and end agree in all three formats."""
    (record,) = streamed(wire=wire, chunk_tokens="2")
    assert problems([record]) == ""
    assert list(record.chunk_tokens) == [2] * 6
    assert len(record.output_ids) == (0 if wire == "chat" else 12)
