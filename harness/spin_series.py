"""SPIN's per-layer gauges in a run's telemetry."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from harness.telemetry import Telemetry, Values

# mean share of a row's true top-k that the prediction would have skipped
MISS = r"sglang_spin:(layer_)?miss(_mean|_share)?"
KEPT = r"sglang_spin:kept_share"


def layer_series(telemetry: Telemetry, pattern: str) -> dict[int, Values]:
    """The gauges with a `layer` label over time, by layer, the mean over ranks. [readings] each"""
    found: dict[int, list[Values]] = {}
    for (_, labels), values in telemetry.select(pattern).items():
        layer = dict(labels).get("layer", "")
        if layer.isdigit():
            found.setdefault(int(layer), []).append(values)
    return {layer: np.mean(found[layer], axis=0) for layer in sorted(found)}


def per_layer(telemetry: Telemetry, pattern: str) -> list[float | None] | None:
    """Last value of the gauges with a `layer` label, by layer, the mean over ranks.

    None for a layer without a value; None at all when no such gauge was seen.
    """
    found: dict[int, list[float]] = {}
    for (_, labels), values in telemetry.select(pattern).items():
        layer = dict(labels).get("layer", "")
        present = values[~np.isnan(values)]
        if layer.isdigit() and len(present):
            found.setdefault(int(layer), []).append(float(present[-1]))
    if not found:
        return None
    return [fmean(found[n]) if n in found else None for n in range(max(found) + 1)]


def mean_per_layer(parts: Sequence[list[float | None] | None]) -> list[float | None] | None:
    """Mean over runs, layer by layer; None when no run has any."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    means: list[float | None] = []
    for layer in range(max(len(part) for part in known)):
        values = [part[layer] for part in known if layer < len(part)]
        present = [value for value in values if value is not None]
        means.append(fmean(present) if present else None)
    return means
