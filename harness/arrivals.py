"""When the conversations of an open loop start, in seconds after the load began."""

import math

import numpy as np

from harness.spec_arrival import Constant, Poisson, Ramp, Recorded
from harness.spec_workload import ContextWork, TraceWork
from harness.trace import read_trace

Work = ContextWork | TraceWork


def due_seconds(work: Work, count: int, key: list[int]) -> list[float] | None:
    """Start of each of `count` conversations, rising; None for a closed loop.

    key seeds the random gaps of `poisson`: the same in every arm of a pair.
    """
    arrival = work.arrival
    if isinstance(arrival, Constant):
        return [index / arrival.per_s for index in range(count)]
    if isinstance(arrival, Poisson):
        gaps = np.random.default_rng(key).exponential(1 / arrival.per_s, size=count)
        # the first one starts the clock
        return [0.0, *np.cumsum(gaps[1:]).tolist()]
    if isinstance(arrival, Ramp):
        return [_ramp_time(arrival, index) for index in range(count)]
    if isinstance(arrival, Recorded):
        assert isinstance(work, TraceWork)
        times = [request.at_s for request in read_trace(work)]
        return [(time - times[0]) / arrival.speed for time in times[:count]]
    return None


def _ramp_time(ramp: Ramp, index: int) -> float:
    """The t at which index conversations have started: from t + (to - from) t^2 / (2 over)."""
    slope = (ramp.to_per_s - ramp.from_per_s) / ramp.over_s
    by_end = (ramp.from_per_s + ramp.to_per_s) / 2 * ramp.over_s
    if index > by_end:
        return ramp.over_s + (index - by_end) / ramp.to_per_s
    inside = ramp.from_per_s**2 + 2 * slope * index
    return (math.sqrt(max(0.0, inside)) - ramp.from_per_s) / slope
