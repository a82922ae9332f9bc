"""Prometheus series on the engine's own /metrics, with the engine's own labels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang_spin.core.budget import Allotment
from sglang_spin.core.totals import LayerTotals, Totals

PREFIX = "sglang_spin:"
WINDOW_S = 60.0  # what a gauge averages over

Value = float | None


@dataclass(frozen=True, slots=True)
class LayerSeries:
    """One number per indexer layer, labelled with the engine's layer id."""

    name: str
    text: str
    value: Callable[[LayerTotals], Value]


@dataclass(frozen=True, slots=True)
class RankSeries:
    """One number per rank."""

    name: str
    text: str
    value: Callable[[Totals], Value]


# gauges look at the last WINDOW_S seconds; counters grow from the start, and add up over ranks
LAYER_GAUGES = (
    LayerSeries("kept_share", "Share of KV blocks the indexer scored", lambda t: t.kept_share),
    LayerSeries("miss_mean", "Share of true top-k entries skipped, mean", lambda t: t.miss_mean),
    LayerSeries("miss_p99", "Share of true top-k entries skipped, p99", lambda t: t.miss_p99),
    LayerSeries(
        "exploration_yield",
        "Of blocks scored again after a pause, the share with a top-k entry",
        lambda t: t.exploration_yield,
    ),
)
RANK_GAUGES = (
    RankSeries("cold_share", "Share of KV blocks never scored before", lambda t: t.cold_share),
)
LAYER_COUNTERS = (
    LayerSeries("kept_blocks", "KV blocks scored", lambda t: t.kept),
    LayerSeries("seen_blocks", "KV blocks present", lambda t: t.seen),
    LayerSeries("audited_entries", "Top-k entries audited", lambda t: t.audits.get("entries", 0)),
    LayerSeries(
        "missed_entries", "Audited entries in skipped blocks", lambda t: t.audits.get("missed", 0)
    ),
)
RANK_COUNTERS = (
    RankSeries("steps", "Decode steps", lambda t: t.scalars["steps"]),
    RankSeries("seeded_rows", "Requests that inherited a history", lambda t: _rows(t, "seeded")),
    RankSeries("cold_rows", "Requests that started without one", lambda t: _rows(t, "cold")),
    RankSeries("audits", "Rows scored in full to measure the miss", lambda t: t.audits),
)
# not counted: what the miss SLO has set
SPARSITY = RankSeries("sparsity", "Share of blocks that rows may skip in all", lambda _: None)
LAYER_SPARSITY = LayerSeries("layer_sparsity", "Share that a layer may skip", lambda _: None)
GAUGES = (*LAYER_GAUGES, *RANK_GAUGES, SPARSITY, LAYER_SPARSITY)
COUNTERS = (*LAYER_COUNTERS, *RANK_COUNTERS)


def series_names() -> set[str]:
    """Every name as it stands in /metrics."""
    return {PREFIX + s.name for s in GAUGES} | {f"{PREFIX}{s.name}_total" for s in COUNTERS}


class Exporter:
    """Created in a scheduler process after its start: prometheus_client picks its way of counting,
    one process or several, when it is first imported.

    labels: those of the engine's own series. layers: engine layer ids.
    """

    def __init__(self, labels: dict[str, Any], layers: list[int]) -> None:
        from prometheus_client import Counter, Gauge

        self.labels, self.layers = labels, layers
        self.gauges = {
            s.name: Gauge(PREFIX + s.name, s.text, self._names(s), multiprocess_mode="mostrecent")
            for s in GAUGES
        }
        self.counters = {s.name: Counter(PREFIX + s.name, s.text, self._names(s)) for s in COUNTERS}
        self.history: deque[tuple[float, Totals]] = deque()

    def publish(self, totals: Totals, seconds: float, allotment: Allotment) -> None:
        """Set all series. totals: since start; seconds: a clock's; allotment: in force now."""
        # a copy of some steps ago may arrive after the idle loop has read newer ones
        if self.history and totals.scalars["steps"] < self.history[-1][1].scalars["steps"]:
            return
        self.gauges[SPARSITY.name].labels(**self.labels).set(allotment.sparsity)
        for layer, sparsity in zip(self.layers, allotment.by_layer, strict=True):
            labels = {**self.labels, "layer": str(layer)}
            self.gauges[LAYER_SPARSITY.name].labels(**labels).set(sparsity)
        recent = totals.since(self._window_start(seconds)) if self.history else totals
        for name, labels, value in _values(recent, self.layers, LAYER_GAUGES, RANK_GAUGES):
            # a gauge without a sample in the window keeps its last value
            if value is not None:
                self.gauges[name].labels(**self.labels, **labels).set(value)
        last = totals.since(self.history[-1][1]) if self.history else totals
        for name, labels, value in _values(last, self.layers, LAYER_COUNTERS, RANK_COUNTERS):
            self.counters[name].labels(**self.labels, **labels).inc(value)
        self.history.append((seconds, totals))

    def _window_start(self, seconds: float) -> Totals:
        """The newest totals that are at least WINDOW_S old, or the oldest there are."""
        while len(self.history) > 1 and seconds - self.history[1][0] >= WINDOW_S:
            self.history.popleft()
        return self.history[0][1]

    def _names(self, series: LayerSeries | RankSeries) -> list[str]:
        return [*self.labels, *(["layer"] if isinstance(series, LayerSeries) else [])]


def _values(
    totals: Totals,
    layers: list[int],
    by_layer: tuple[LayerSeries, ...],
    by_rank: tuple[RankSeries, ...],
) -> Iterator[tuple[str, dict[str, str], Value]]:
    for series in by_layer:
        for layer, numbers in zip(layers, totals.layers, strict=True):
            yield series.name, {"layer": str(layer)}, series.value(numbers)
    for lone in by_rank:
        yield lone.name, {}, lone.value(totals)


def _rows(totals: Totals, kind: str) -> int:
    return totals.scalars[f"rows_{kind}"]
