"""What the server and the machine said about themselves during a load, on the client's clock."""

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.promtext import SeriesKey

Values = NDArray[np.float64]


class CounterFell(Exception):
    """A counter went down: the server restarted, or another one answered."""


@dataclass(frozen=True)
class Gap:
    """A moment without samples, and why; t_ns is perf_counter_ns."""

    t_ns: int
    why: str


def _doubles() -> "array[float]":
    return array("d")


@dataclass
class Telemetry:
    """Series sampled together. series[k][i] was read at t_ns[i]; NaN where the page lacked it.

    complete: the first reading was taken before the work began, the last after all of it had ended.
    """

    t_ns: "array[int]" = field(default_factory=lambda: array("q"))
    series: "dict[SeriesKey, array[float]]" = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    complete: bool = False

    def add(self, t_ns: int, samples: Mapping[SeriesKey, float]) -> None:
        """Append one reading. Series may appear late, and may be missing again."""
        known = len(self.t_ns)
        self.t_ns.append(t_ns)
        for key in samples:
            if key not in self.series:
                self.series[key] = array("d", [math.nan] * known)
        for key, values in self.series.items():
            values.append(samples.get(key, math.nan))

    def add_gap(self, t_ns: int, why: str) -> None:
        """Note that a reading failed."""
        self.gaps.append(Gap(t_ns, why))

    def times(self) -> NDArray[np.int64]:
        """Times of all readings, ns. [readings]"""
        return np.array(self.t_ns, dtype=np.int64)

    def select(self, pattern: str) -> dict[SeriesKey, Values]:
        """Series whose whole name matches. [readings] each"""
        regex = re.compile(pattern)
        return {
            key: np.array(values, dtype=np.float64)
            for key, values in self.series.items()
            if regex.fullmatch(key[0])
        }

    def total(self, pattern: str) -> Values | None:
        """Sum over all labels of the matching series; None when there is none. [readings]

        A breakdown by priority repeats the total, so it is left out. Where a page had none of the
        series the sum is NaN.
        """
        found = [
            values
            for (_, labels), values in self.select(pattern).items()
            if not dict(labels).get("priority")
        ]
        if not found:
            return None
        stacked = np.array(found)
        return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0))

    def rise(self, pattern: str) -> float | None:
        """How far the matching counters rose from the first to the last reading, over all labels.

        A counter that appears late began at 0, as a client library makes it when it first counts.
        None when none is there. Raises CounterFell when one of them went down or vanished.
        """
        found = self.select(pattern)
        return sum(_rise(key, values) for key, values in found.items()) if found else None


def _rise(key: SeriesKey, values: Values) -> float:
    present = np.flatnonzero(~np.isnan(values))
    seen = values[present]
    if (np.diff(seen) < 0).any() or present[-1] != len(values) - 1:
        raise CounterFell(f"counter {key[0]} fell or vanished during the load")
    return float(seen[-1] - (seen[0] if present[0] == 0 else 0.0))
