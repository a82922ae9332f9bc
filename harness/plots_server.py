"""What the server and the GPUs said of themselves, on the clock of the tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.campaign import Campaign
from harness.drawing import SECONDS, as_png, colour, from_zero, new_figure
from harness.metric_map import METRIC_MAPS, metric_map
from harness.metrics import NS_PER_MS, NS_PER_S, full_run_window
from harness.runrecord import ArmRun
from harness.spin_series import KEPT, MISS, layer_series
from harness.telemetry import Telemetry, Values
from harness.timeline import itl_over_time


@dataclass(frozen=True)
class _Panel:
    """A gauge of a run's `telemetry` or `gpus`. meaning: of the metric map, summed over labels;
    otherwise pattern, of which the mean is shown."""

    title: str
    unit: str
    source: str
    meaning: str = ""
    pattern: str = ""


_PANELS = (
    _Panel("Requests running, by the server", "requests", "telemetry", meaning="running"),
    _Panel("Requests queued, by the server", "requests", "telemetry", meaning="queued"),
    _Panel("KV cache in use, by the server", "share", "telemetry",
           pattern="sglang:token_usage|vllm:kv_cache_usage_perc"),
    _Panel("GPU utilisation, mean of the GPUs", "%", "gpus", pattern="gpu:utilization_percent"),
    _Panel("GPU power, mean of the GPUs", "W", "gpus", pattern="gpu:power_w"),
    _Panel("PCIe to the GPU, mean of the GPUs", "KiB/s", "gpus", pattern="gpu:pcie_rx_kib_s"),
)  # fmt: skip


def server_over_time(campaign: Campaign) -> bytes | None:
    """A panel for each gauge that any server or GPU reported, a line for each run."""
    lines = {panel: found for panel in _PANELS if (found := list(_lines(campaign, panel)))}
    if not lines:
        return None
    figure, panels = new_figure(*(panel.title for panel in lines), shared_x=True)
    for axes, (panel, found) in zip(panels, lines.items(), strict=True):
        labelled = set[int]()
        for place, seconds, values in found:
            label = None if place in labelled else list(campaign.spec.arms)[place]
            labelled.add(place)
            axes.plot(seconds, values, color=colour(place), linewidth=1, alpha=0.7, label=label)
        axes.set_ylabel(panel.unit)
        from_zero(axes, least=1.0 if panel.unit == "requests" else 0.0)
    panels[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    panels[-1].set_xlabel(SECONDS)
    return as_png(figure)


def _lines(campaign: Campaign, panel: _Panel) -> Iterator[tuple[int, Values, Values]]:
    """Place of the arm, seconds, values; of every run that has them."""
    for place, arm in enumerate(campaign.spec.arms):
        for run in campaign.runs:
            if run.arm != arm or (window := full_run_window(run.records)) is None:
                continue
            telemetry: Telemetry = getattr(run, panel.source)
            values = _values(telemetry, panel, campaign.spec.metrics)
            if values is not None:
                yield place, (telemetry.times() - window[0]) / NS_PER_S, values


def _values(telemetry: Telemetry, panel: _Panel, changes: Mapping[str, str]) -> Values | None:
    if panel.pattern:
        found = list(telemetry.select(panel.pattern).values())
        mean: Values | None = np.mean(found, axis=0) if found else None
        return mean
    # a run does not say which kind of server it had; the names are different ones
    patterns = [getattr(metric_map(kind, changes), panel.meaning) for kind in METRIC_MAPS]
    totals = [telemetry.total(pattern) for pattern in patterns if pattern]
    return next((total for total in totals if total is not None), None)


def spin_over_time(campaign: Campaign) -> bytes | None:
    """ITL above SPIN's gauges of each layer, of the last run of every arm that has them."""
    shown = {
        place: run
        for place, arm in enumerate(campaign.spec.arms)
        for run in campaign.runs
        if run.arm == arm and run.records and layer_series(run.telemetry, KEPT)
    }
    if not shown:
        return None
    missed = any(layer_series(run.telemetry, MISS) for run in shown.values())
    titles = ["Median ITL over time", "KV blocks scored by the indexer, a line for each layer"]
    titles += ["Top-k entries that the prediction would have missed, by layer"] if missed else []
    figure, axes = new_figure(*titles, shared_x=True)
    for place, run in shown.items():
        _spin_lines(axes, run, list(campaign.spec.arms)[place], place)
    for panel, unit in zip(axes, ("ms per token", "kept share", "miss"), strict=False):
        panel.set_ylabel(unit)
        from_zero(panel)
    axes[1].set_ylim(0, 1.02)
    axes[0].legend(frameon=False, loc="lower right")
    axes[-1].set_xlabel(SECONDS)
    return as_png(figure)


def _spin_lines(axes: list[Any], run: ArmRun, arm: str, place: int) -> None:
    window = full_run_window(run.records)
    assert window is not None
    seconds, itl_ns = itl_over_time(run.records, window)
    style = {"color": colour(place), "linewidth": 1}
    axes[0].plot(
        seconds, np.array(itl_ns) / NS_PER_MS, label=f"{arm}, pair {run.pair + 1}", **style
    )
    clock = (run.telemetry.times() - window[0]) / NS_PER_S
    for panel, pattern in zip(axes[1:], (KEPT, MISS), strict=False):
        for values in layer_series(run.telemetry, pattern).values():
            panel.plot(clock, values, alpha=0.6, **style)
