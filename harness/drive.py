"""Driving a load: which conversation starts when, and one request of it after the other."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from harness.client import LoadProgress, stream_completion
from harness.record import RequestRecord

Chain = Sequence[int]


@dataclass(frozen=True)
class Load:
    """Bodies in request order, and the rules by which they are sent.

    chains: requests of one conversation, each sent when the one before has ended; None means that
    every request is one of its own. think_s: pause between the turns of a conversation.
    due_s None: a closed loop, `concurrency` streams each take the next conversation when their last
    one ended, and begin spread over ramp_s. Otherwise due_s[i] is the start of conversation i in
    seconds after the barrier, not falling, and `concurrency` is the most that may be in flight;
    what waits for a free stream is queued.
    """

    bodies: Sequence[bytes]
    concurrency: int
    stall_s: float
    deadline_s: float
    chains: Sequence[Chain] | None = None
    due_s: Sequence[float] | None = None
    ramp_s: float = 0.0
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.due_s is not None and len(self.due_s) != len(self.conversations()):
            raise ValueError(
                f"{len(self.due_s)} start times for {len(self.conversations())} conversations"
            )

    def conversations(self) -> Sequence[Chain]:
        """Indices of the requests of every conversation."""
        return self.chains or [[index] for index in range(len(self.bodies))]


def new_records(load: Load) -> list[RequestRecord]:
    """An empty record per body, in order."""
    return [RequestRecord(index=index) for index in range(len(load.bodies))]


async def run_load(
    session: aiohttp.ClientSession,
    load: Load,
    records: list[RequestRecord],
    progress: LoadProgress | None = None,
) -> None:
    """Send every request and fill `records`; what was there stays when the load is cancelled."""
    driver = _Driver(session, load, records, progress)
    chains = load.conversations()
    queue = iter(enumerate(chains))
    start = asyncio.Event()
    streams = [
        asyncio.create_task(driver.stream(queue, start, place))
        for place in range(min(load.concurrency, len(chains)))
    ]
    try:
        # every stream must be waiting before the first one may send
        await asyncio.sleep(0)
        driver.began_ns = time.perf_counter_ns()
        start.set()
        await asyncio.wait(streams, timeout=load.deadline_s)
    finally:
        for stream in streams:
            stream.cancel()
        outcomes = await asyncio.gather(*streams, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    for record in records:
        if not record.sent_ns and record.error is None:
            record.error = "not sent before the load's deadline"


@dataclass
class _Driver:
    """What the streams of one load share."""

    session: aiohttp.ClientSession
    load: Load
    records: list[RequestRecord]
    progress: LoadProgress | None
    began_ns: int = 0

    async def stream(
        self, queue: Iterator[tuple[int, Chain]], start: asyncio.Event, place: int
    ) -> None:
        """One stream: a conversation after the other until none is left."""
        await start.wait()
        load = self.load
        if load.due_s is None:
            await asyncio.sleep(load.ramp_s * place / load.concurrency)
        for number, chain in queue:
            due_ns = 0
            if load.due_s is not None:
                due_ns = self.began_ns + round(load.due_s[number] * 1e9)
                await asyncio.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
            await self._converse(chain, due_ns)

    async def _converse(self, chain: Chain, due_ns: int) -> None:
        """Send a conversation's requests in turn; a failed one ends it."""
        for place, index in enumerate(chain):
            if place:
                await asyncio.sleep(self.load.think_s)
                due_ns = 0
            await self._send(index, due_ns)
            if self.records[index].error is not None:
                for unsent in chain[place + 1 :]:
                    self.records[unsent].error = "not sent, the turn before it failed"
                return

    async def _send(self, index: int, due_ns: int) -> None:
        record = self.records[index]
        # a closed loop has no schedule of its own: a request is due when its stream is free
        record.scheduled_ns = due_ns or time.perf_counter_ns()
        if self.progress is not None:
            self.progress.running += 1
        body = self.load.bodies[index]
        await stream_completion(self.session, body, record, self.load.stall_s, self.progress)
        if self.progress is not None:
            self.progress.running -= 1
