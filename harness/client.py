"""The streaming client: one process, one session, bodies encoded beforehand."""

import asyncio
import time
from io import BytesIO

import aiohttp

from harness.record import RequestRecord
from harness.sse import SseParser
from harness.stream import StreamError, take_event

COMPLETIONS = "/v1/completions"
READ_BUFFER_BYTES = 1 << 20


class LoadProgress:
    """Running totals of a load, for the display only."""

    def __init__(self, expected_tokens: int) -> None:
        self.expected_tokens = expected_tokens
        self.tokens = 0
        self.running = 0


def open_session(base_url: str) -> aiohttp.ClientSession:
    """A session without aiohttp's pool limit of 100 and without its total timeout of 300 s."""
    return aiohttp.ClientSession(
        base_url,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=stream_timeout(60),
        read_bufsize=READ_BUFFER_BYTES,
    )


def stream_timeout(stall_s: float) -> aiohttp.ClientTimeout:
    """No limit on the whole request, only on silence and on connecting."""
    return aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=stall_s)


async def stream_completion(
    session: aiohttp.ClientSession,
    body: bytes,
    record: RequestRecord,
    stall_s: float,
    progress: LoadProgress | None = None,
) -> None:
    """Send one request and fill its record; a failure goes into `record.error`, never up."""
    record.sent_ns = time.perf_counter_ns()
    try:
        await _stream(session, body, record, stall_s, progress)
    except TimeoutError:
        record.error = f"no byte for {stall_s:g} s"
    except (aiohttp.ClientError, StreamError, OSError) as error:
        record.error = f"{type(error).__name__}: {error}"[:300]
    except asyncio.CancelledError:
        record.error = "cancelled at the load's deadline"
        raise
    finally:
        record.done_ns = time.perf_counter_ns()


async def _stream(
    session: aiohttp.ClientSession,
    body: bytes,
    record: RequestRecord,
    stall_s: float,
    progress: LoadProgress | None,
) -> None:
    parser = SseParser()
    headers = {"Content-Type": "application/json"}
    # a file-like body goes out in pieces, so that a large one does not hold up the other streams
    async with session.post(
        COMPLETIONS, data=BytesIO(body), headers=headers, timeout=stream_timeout(stall_s)
    ) as response:
        record.headers_ns = time.perf_counter_ns()
        if response.status != 200:
            raise StreamError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for piece in response.content.iter_any():
            received_ns = time.perf_counter_ns()
            record.first_byte_ns = record.first_byte_ns or received_ns
            before = len(record.chunk_tokens)
            for data in parser.feed(piece):
                take_event(record, data, received_ns)
            if progress is not None:
                progress.tokens += sum(record.chunk_tokens[before:])
