"""A server that only streams: events encoded beforehand, written to all streams at one beat.

It must never be what is measured, so it parses nothing but the length of a request, and reports how
late its own beats were. `python -m benchmarks.client_overhead.firehose --port N --tokens N --itl-ms
MS`; GET /stats tells the state of the streams.
"""

import argparse
import asyncio
import re
import time
from array import array
from dataclasses import dataclass, field
from typing import cast

import orjson
import uvloop

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"


def sse_events(tokens: int, chat: bool, usage: bool) -> list[bytes]:
    """All events of a stream of `tokens` tokens, one a chunk, framed for HTTP; the last ends it.

    Without `usage` no event has any, as a server does that was not asked for it.
    """
    base = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "mock"}
    framed = []
    for sent in range(1, tokens + 1):
        reason = "length" if sent == tokens else None
        text = {"delta": {"content": " t3"}} if chat else {"text": " t3", "token_ids": [3]}
        event = base | {"choices": [{"index": 0, "finish_reason": reason, **text}]}
        framed.append(_frame(event | {"usage": _usage(sent)} if usage else event))
    if usage:
        framed[-1] += _frame(base | {"choices": [], "usage": _usage(tokens)})
    framed[-1] += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    return framed


def _usage(sent: int) -> dict[str, int]:
    return {"prompt_tokens": 32, "completion_tokens": sent, "total_tokens": 32 + sent}


def _frame(event: dict[str, object]) -> bytes:
    data = b"data: " + orjson.dumps(event) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass
class Streams:
    """Streams in flight and how far each is; times are perf_counter_ns."""

    tokens: int
    beat_s: float
    events_of: dict[tuple[bool, bool], list[bytes]]
    active: dict["Connection", int] = field(default_factory=dict)
    most: int = 0
    finished: int = 0
    events: int = 0
    full_since_ns: int = 0
    first_end_ns: int = 0
    late_ns: "array[int]" = field(default_factory=lambda: array("q"))

    async def beat(self, wanted: int) -> None:
        """Write the next event of every stream at each beat, once `wanted` streams are there."""
        clock = time.perf_counter
        while True:
            while len(self.active) < wanted:
                await asyncio.sleep(0.005)
            self.full_since_ns = time.perf_counter_ns()
            due = clock()
            while self.active:
                due += self.beat_s
                await asyncio.sleep(max(0.0, due - clock()))
                self.late_ns.append(round((clock() - due) * 1e9))
                self._write_all()

    def _write_all(self) -> None:
        for connection, sent in list(self.active.items()):
            connection.send(self.events_of[connection.kind][sent])
            self.events += 1
            if sent + 1 < self.tokens:
                self.active[connection] = sent + 1
            else:
                del self.active[connection]
                self.finished += 1
                self.first_end_ns = self.first_end_ns or time.perf_counter_ns()

    def stats(self) -> dict[str, float]:
        """State and lateness, ms."""
        late = sorted(self.late_ns)
        return {
            "active": len(self.active),
            "most": self.most,
            "finished": self.finished,
            "events": self.events,
            "full_since_ns": self.full_since_ns,
            "first_end_ns": self.first_end_ns,
            "late_p50_ms": late[len(late) // 2] / 1e6 if late else 0.0,
            "late_p99_ms": late[len(late) * 99 // 100] / 1e6 if late else 0.0,
        }


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection: read a whole request, then answer or stream."""

    def __init__(self, streams: Streams) -> None:
        self.streams, self.kind = streams, (False, False)
        self._read = bytearray()
        self._wanted = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are none of asyncio's classes
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        """A stream whose client is gone is over."""
        self.streams.active.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Collect until the body is whole."""
        self._read += data
        if self._wanted < 0:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return
            match = _LENGTH.search(self._read, 0, end)
            self._wanted = end + 4 + (int(match[1]) if match else 0)
        if len(self._read) >= self._wanted:
            method, path = bytes(self._read[: self._read.find(b"\r\n")]).split(b" ")[:2]
            self.kind = (b"chat" in path, b"include_usage" in self._read)
            self._read.clear()
            self._wanted = -1
            self._answer(method, path)

    def _answer(self, method: bytes, path: bytes) -> None:
        if method == b"POST" and path.endswith(b"completions"):
            self.send(_HEAD % b"text/event-stream" + b"Transfer-Encoding: chunked\r\n\r\n")
            self.streams.active[self] = 0
            self.streams.most = max(self.streams.most, len(self.streams.active))
            return
        answers = {
            b"/stats": self.streams.stats(),
            b"/v1/models": {"object": "list", "data": [{"id": "mock", "object": "model"}]},
        }
        body = orjson.dumps(answers.get(path, {}))
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        self.send(_HEAD % b"application/json" + length + body)

    def send(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


async def serve(port: int, tokens: int, itl_ms: float, streams_wanted: int) -> None:
    """Serve until ended."""
    kinds = [(chat, usage) for chat in (False, True) for usage in (False, True)]
    streams = Streams(tokens, itl_ms / 1e3, {kind: sse_events(tokens, *kind) for kind in kinds})
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(streams), "127.0.0.1", port, backlog=8192)
    async with server:
        await streams.beat(streams_wanted)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--itl-ms", type=float, required=True)
    parser.add_argument("--streams", type=int, required=True, help="streams to wait for")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.tokens, options.itl_ms, options.streams))
