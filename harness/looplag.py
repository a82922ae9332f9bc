"""Is the client itself late? A sleeper that notes by how much it overslept."""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

INTERVAL_S = 0.005


@dataclass
class LoopLag:
    """Samples of the event loop's lateness: when, and by how much, both in ns."""

    t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    lag_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def within(self, start_ns: int, end_ns: int) -> list[int]:
        """Lags noted inside a window, ns."""
        return [
            lag for t, lag in zip(self.t_ns, self.lag_ns, strict=True) if start_ns <= t <= end_ns
        ]

    async def watch(self) -> None:
        """Sample until cancelled."""
        interval_ns = int(INTERVAL_S * 1e9)
        while True:
            due = time.perf_counter_ns() + interval_ns
            await asyncio.sleep(INTERVAL_S)
            now = time.perf_counter_ns()
            self.t_ns.append(now)
            self.lag_ns.append(max(0, now - due))


@asynccontextmanager
async def watching_loop_lag() -> AsyncIterator[LoopLag]:
    """Watch the running loop for the length of the block."""
    lag = LoopLag()
    task = asyncio.create_task(lag.watch())
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
