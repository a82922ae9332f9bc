"""The streaming client: one process, one session, bodies encoded beforehand."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp

from harness.record import RequestRecord
from harness.sse import SseParser
from harness.stream import StreamError
from harness.wire import wire_of

READ_BUFFER_BYTES = 1 << 20
# a large body goes out in pieces, so that it does not hold up the other streams
UPLOAD_PIECE_BYTES = 1 << 16
CONNECT_S = 30.0


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
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=60),
        read_bufsize=READ_BUFFER_BYTES,
    )


def stream_timeout() -> aiohttp.ClientTimeout:
    """No limit on the whole request: SilenceLimit bounds what may stand still."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=None)


class SilenceLimit:
    """Ends the request when neither direction moved for `stall_s`; its length does not matter.

    aiohttp's own read limit also runs while a large body goes out, and would end a slow upload.
    Its timer is set once per limit, not once per read.
    """

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self.uploading = True
        self.timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._moved = self._clock()
        self._timer = self._loop.call_later(stall_s, self._look)

    def moved(self) -> None:
        """Bytes went out or came in."""
        self._moved = self._clock()

    def _look(self) -> None:
        due = self._moved + self.stall_s
        if due <= self._clock():
            self.timeout.reschedule(due)
        else:
            self._timer = self._loop.call_at(due, self._look)

    def end(self) -> None:
        """The request is over."""
        self._timer.cancel()

    def why(self) -> str:
        """The failure in words."""
        what = "the server took no byte of the body" if self.uploading else "no byte"
        return f"{what} for {self.stall_s:g} s"


async def stream_completion(
    session: aiohttp.ClientSession,
    body: bytes,
    record: RequestRecord,
    stall_s: float,
    progress: LoadProgress | None = None,
) -> None:
    """Send one request and fill its record; a failure goes into `record.error`, never up."""
    record.sent_ns = time.perf_counter_ns()
    silence = SilenceLimit(stall_s)
    try:
        async with silence.timeout:
            try:
                await _stream(session, body, record, silence, progress)
            finally:
                silence.end()
    except TimeoutError:
        late = silence.timeout.expired()
        record.error = silence.why() if late else f"no connection within {CONNECT_S:g} s"
    except (aiohttp.ClientError, StreamError, OSError) as error:
        record.error = f"{type(error).__name__}: {error}"[:300]
    except asyncio.CancelledError:
        record.error = "cancelled at the load's deadline"
        raise
    finally:
        record.done_ns = time.perf_counter_ns()


async def _upload(
    body: bytes, record: RequestRecord, silence: SilenceLimit
) -> AsyncIterator[bytes | memoryview]:
    """The body in pieces; its end is noted when the socket has taken the last one but a buffer."""
    whole = memoryview(body)
    for start in range(0, len(body), UPLOAD_PIECE_BYTES):
        yield whole[start : start + UPLOAD_PIECE_BYTES]
        silence.moved()
    record.uploaded_ns = time.perf_counter_ns()
    silence.uploading = False


async def _stream(
    session: aiohttp.ClientSession,
    body: bytes,
    record: RequestRecord,
    silence: SilenceLimit,
    progress: LoadProgress | None,
) -> None:
    parser, wire = SseParser(), wire_of(body)
    take = wire.take
    # with its length given, aiohttp sends the pieces without chunked encoding
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    upload = _upload(body, record, silence)
    async with session.post(
        wire.path, data=upload, headers=headers, timeout=stream_timeout()
    ) as response:
        record.headers_ns = time.perf_counter_ns()
        if response.status != 200:
            raise StreamError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for piece in response.content.iter_any():
            received_ns = time.perf_counter_ns()
            record.first_byte_ns = record.first_byte_ns or received_ns
            silence.moved()
            before = len(record.chunk_tokens)
            for data in parser.feed(piece):
                take(record, data, received_ns)
            if progress is not None:
                progress.tokens += sum(record.chunk_tokens[before:])
