"""Does the server's own account of a load agree with what its replies said?

Usage of every reply comes first; the counters are the cross-check. They also tell what a client
cannot see: requests that were thrown out and begun again, pages that were evicted, a queue.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from harness.metric_map import MetricMap
from harness.metrics import NS_PER_S, Window, itl_chunk_ns, percentile, pooled
from harness.record import RequestRecord
from harness.telemetry import CounterFell, Telemetry


def proof_problems(
    telemetry: Telemetry,
    records: Sequence[RequestRecord],
    window: Window | None,
    metrics: MetricMap,
) -> list[str]:
    """Problems of the load by the server's counters, one line each.

    Without a series of this kind of server nothing is claimed (see proof_notes).
    """
    if not telemetry.series:
        return []
    if not telemetry.complete:
        return ["metrics: /metrics was not read both before and after the load"]
    try:
        problems = list(_token_problems(telemetry, records, metrics))
        problems += _disturbances(telemetry, metrics)
    except CounterFell as error:
        return [f"metrics: {error}"]
    gaps = pooled([itl_chunk_ns(record, window) for record in records])
    step_ns = percentile(gaps, 50) or 0.0
    delay_ns = max(metrics.gauge_delay_s * NS_PER_S, metrics.gauge_delay_steps * step_ns)
    return problems + list(_queue_problems(telemetry, window, metrics, delay_ns))


def proof_notes(telemetry: Telemetry) -> list[str]:
    """What a reader should know about the account itself."""
    if not telemetry.series:
        why = telemetry.gaps[0].why if telemetry.gaps else "no series that this harness knows"
        return [f"metrics: not checked, /metrics gave nothing ({why})"]
    if telemetry.gaps:
        return [f"metrics: {len(telemetry.gaps)} gaps, the first: {telemetry.gaps[0].why}"]
    return []


def _token_problems(
    telemetry: Telemetry, records: Sequence[RequestRecord], metrics: MetricMap
) -> Iterator[str]:
    if any(record.error is not None for record in records):
        # a failed request is a problem of its own, and how a server counts it is its own affair
        return
    for name, pattern, counts in (
        ("prompt tokens", metrics.prompt_tokens, [r.prompt_tokens for r in records]),
        ("output tokens", metrics.output_tokens, [r.completion_tokens for r in records]),
        ("cached tokens", metrics.cached_tokens, [r.cached_tokens for r in records]),
    ):
        known = [count for count in counts if count is not None]
        rise = telemetry.rise(pattern) if pattern else None
        if len(known) < len(counts) or (rise is None and sum(known) == 0):
            # an unreported count is a problem of its own, and a counter of nothing may not exist
            continue
        if rise is None:
            yield f"metrics: {pattern} is not on /metrics, so {name} cannot be checked"
        elif rise != sum(known):
            yield f"metrics: the server counted {rise:.0f} {name}, its replies say {sum(known)}"


def _disturbances(telemetry: Telemetry, metrics: MetricMap) -> Iterator[str]:
    for pattern, what in (
        (metrics.retracted, "requests were thrown out and begun again during the load"),
        (metrics.evicted, "cached tokens were evicted during the load"),
    ):
        rise = telemetry.rise(pattern) if pattern else None
        if rise:
            yield f"metrics: {rise:.0f} {what}; lower concurrency or lengths"


def _queue_problems(
    telemetry: Telemetry, window: Window | None, metrics: MetricMap, delay_ns: float
) -> Iterator[str]:
    """Requests that waited inside the window; a gauge set before it is not held against it."""
    queued = telemetry.total(metrics.queued) if metrics.queued else None
    if queued is None or window is None:
        return
    times = telemetry.times()
    inside = (times >= window[0] + delay_ns) & (times <= window[1])
    most = np.nanmax(queued[inside], initial=0.0)
    if most > 0:
        yield f"metrics: up to {most:.0f} requests were queued inside the window"
