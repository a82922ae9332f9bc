"""The harness's client alone: N streams at once, figures as JSON on stdout."""

import argparse
import asyncio
import json
import time

import numpy as np
import uvloop

from harness import metrics
from harness.client import open_session, stream_completion
from harness.looplag import watching_loop_lag
from harness.record import RequestRecord
from harness.wire import completion_body


async def measure(base_url: str, streams: int, tokens: int) -> dict[str, float | int | None]:
    """Run all streams to their end. Times in ms."""
    body = completion_body("mock", np.arange(3, 35, dtype=np.int64), tokens)
    records = [RequestRecord(index=index) for index in range(streams)]
    async with open_session(base_url) as session, watching_loop_lag() as lag:
        await asyncio.gather(*(stream_completion(session, body, record, 120) for record in records))
    window = metrics.occupancy_window(records, streams)
    gaps = metrics.pooled([metrics.itl_token_ns(record, window) for record in records])
    inside = np.array(lag.within(*window) if window else [], dtype=np.float64)
    return {
        "failed": sum(record.error is not None for record in records),
        "events": sum(len(record.chunk_t_ns) for record in records),
        "itl_p50_ms": _ms(metrics.percentile(gaps, 50)),
        "itl_p99_ms": _ms(metrics.percentile(gaps, 99)),
        "loop_lag_p99_ms": _ms(metrics.percentile(inside, 99)),
        "cpu_share": lag.cpu_share(*window) if window else None,
        "send_spread_ms": _ms(metrics.send_spread_ns(records, streams)),
        "ended_ns": time.perf_counter_ns(),
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else value / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(uvloop.run(measure(options.url, options.streams, options.tokens))))
