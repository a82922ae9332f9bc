"""What the client notes of its own lateness."""

import asyncio
import time

from harness.looplag import LoopLag, watching_loop_lag

MS = 1_000_000


def test_one_long_stop_is_a_share_of_the_window() -> None:
    """One stop of 300 ms in 10 s is 3 %, though no percentile of the samples shows it."""
    lag = LoopLag()
    for t in range(5, 10_001, 5):
        lag.t_ns.append(t * MS)
        lag.lag_ns.append(300 * MS if t == 5000 else 2 * MS)
        lag.cpu_ns.append(t * MS // 4)
    assert lag.late_share(0, 10_000 * MS, above_ns=20 * MS) == 0.03
    assert lag.late_share(0, 4000 * MS, above_ns=20 * MS) == 0
    assert lag.late_share(5, 5, above_ns=0) == 0
    assert lag.cpu_share(0, 10_000 * MS) == 0.25
    assert lag.cpu_share(0, 7 * MS) is None


def test_blocked_loop_is_noted() -> None:
    """A loop blocked for 100 ms notes at least most of it, and the time it took to compute."""

    async def block() -> LoopLag:
        async with watching_loop_lag() as lag:
            await asyncio.sleep(0.05)
            time.sleep(0.1)
            await asyncio.sleep(0.05)
        return lag

    lag = asyncio.run(block())
    assert max(lag.lag_ns) > 80 * MS
    assert list(lag.cpu_ns) == sorted(lag.cpu_ns)
