"""Milliseconds of steps: arms in turn within one run, each step from cold caches."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

from benchmarks.indexer_step.steps import Mark

EAGER_STEPS = 3  # steps that are timed part by part
# on a GPU the flush must outlast the launch of a graph
FLUSH_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
COPY_REPEATS = 7


class Step(Protocol):
    """What is timed."""

    def warm_up(self) -> None: ...

    def run(self, mark: Mark = ...) -> None: ...


class Stopwatch:
    """Times enqueued work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._trash = torch.zeros(FLUSH_BYTES[device.type], dtype=torch.uint8, device=device)

    @property
    def graphs(self) -> bool:
        """Whether steps are replayed from a CUDA graph, as an engine does."""
        return self.device.type == "cuda"

    def prepare(self, step: Step, warm_ups: int) -> Callable[[], None]:
        """Warm up, and return what repeats a steady step."""
        for _ in range(warm_ups):
            step.warm_up()
        step.run()
        if not self.graphs:
            return step.run
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.run()
        return graph.replay

    def time(self, work: Callable[[], object]) -> float:
        """Milliseconds of one call. What earlier work left in the caches is evicted first."""
        self._trash.add_(1)
        if self.device.type == "cpu":
            start = time.perf_counter_ns()
            work()
            return (time.perf_counter_ns() - start) / 1e6
        # the flush still runs while these are enqueued: launch latency stays outside
        begin = _event()
        work()
        end = _event()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def parts(self, step: Step) -> dict[str, float]:
        """Median milliseconds of each part of a step, run eagerly. Their sum is not the step."""
        laps = [self._laps(step) for _ in range(EAGER_STEPS)]
        return {name: statistics.median(lap[name] for lap in laps) for name in laps[0]}

    def _laps(self, step: Step) -> dict[str, float]:
        self._trash.add_(1)
        names: list[str] = []
        moments = [self._now()]

        def mark(part: str) -> None:
            names.append(part)
            moments.append(self._now())

        step.run(mark)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        spent: dict[str, float] = defaultdict(float)
        for part, (before, after) in zip(names, pairwise(moments), strict=True):
            spent[part] += before.elapsed_time(after)
        return dict(spent)

    def _now(self) -> Moment:
        return _Instant(time.perf_counter_ns()) if self.device.type == "cpu" else _event()


class Moment(Protocol):
    """A point in time on a device; CUDA events are such."""

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds until a later one."""


@dataclass(frozen=True)
class _Instant:
    ns: int

    def elapsed_time(self, later: _Instant) -> float:
        return (later.ns - self.ns) / 1e6


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def interleaved(arms: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of every arm in every repeat. The order turns, so no arm is always first."""
    names = list(arms)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(arms[name]())
    return samples


def copy_bandwidth(watch: Stopwatch) -> float:
    """Bytes read and written per second by a large copy, median of repeats."""
    size = COPY_BYTES[watch.device.type]
    source = torch.ones(size, dtype=torch.uint8, device=watch.device)
    target = torch.zeros_like(source)
    times = [watch.time(lambda: target.copy_(source)) for _ in range(COPY_REPEATS)]
    return 2 * size / (statistics.median(times) / 1e3)
