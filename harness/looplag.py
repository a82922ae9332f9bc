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
    """Samples of the event loop's lateness: when it was noted, and by how much, both in ns.

    cpu_ns[i]: processor time that the process had used at t_ns[i].
    """

    t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    lag_ns: "array[int]" = field(default_factory=lambda: array("q"))
    cpu_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def late_share(self, start_ns: int, end_ns: int, above_ns: float) -> float:
        """Share of a window that the loop spent blocked for longer than `above_ns` at once.

        A percentile does not see one long stop among many samples; this does.
        """
        late = sum(lag for lag in self.within(start_ns, end_ns) if lag > above_ns)
        return late / (end_ns - start_ns) if end_ns > start_ns else 0.0

    def cpu_share(self, start_ns: int, end_ns: int) -> float | None:
        """Processor time over time inside a window; None with less than two samples in it."""
        inside = [
            (t, cpu)
            for t, cpu in zip(self.t_ns, self.cpu_ns, strict=True)
            if start_ns <= t <= end_ns
        ]
        if len(inside) < 2:
            return None
        (first_t, first_cpu), (last_t, last_cpu) = inside[0], inside[-1]
        return (last_cpu - first_cpu) / (last_t - first_t)

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
            self.cpu_ns.append(time.process_time_ns())


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
