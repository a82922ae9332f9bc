"""The plots of a campaign, as PNG bytes."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from harness.campaign import Campaign
from harness.metrics import NS_PER_MS, Samples, itl_token_ns, pooled

matplotlib.use("Agg")

COLOURS = ("#4c566a", "#2f7ed8", "#d1495b", "#3a9d5d")
SIZE_INCHES = (8.0, 3.6)


def all_plots(campaign: Campaign, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG by file name; a plot without data is left out."""
    plots = {
        "throughput.png": throughput_per_pair(summary),
        "itl.png": itl_distribution(_itl_by_arm(campaign)),
        "kept_share.png": kept_share_per_layer(summary),
    }
    return {name: png for name, png in plots.items() if png is not None}


def _itl_by_arm(campaign: Campaign) -> dict[str, Samples]:
    """Per-token ITL, ns, inside the headline window of every run."""
    by_arm: dict[str, Samples] = {}
    for arm in campaign.spec.arms:
        parts: list[Samples] = []
        for run in campaign.runs:
            window = run.window(campaign.spec)
            if run.arm == arm and window is not None:
                parts += [itl_token_ns(record, window) for record in run.records]
        by_arm[arm] = pooled(parts)
    return by_arm


def throughput_per_pair(summary: Mapping[str, Any]) -> bytes | None:
    """Output tok/s of every run, arms side by side in each pair."""
    runs = [run for run in summary["runs"] if run["output_tok_s"] is not None]
    if not runs:
        return None
    figure, axes = _figure("Output throughput by pair", "pair", "output tok/s")
    arms = list(summary["arms"])
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        mine = [run for run in runs if run["arm"] == arm]
        x = [run["pair"] + 1 + (place - (len(arms) - 1) / 2) * width for run in mine]
        axes.bar(x, [run["output_tok_s"] for run in mine], width, label=arm, color=_colour(place))
    axes.set_xticks(range(1, summary["pairs"] + 1))
    axes.legend(frameon=False)
    return _png(figure)


def itl_distribution(by_arm: Mapping[str, Samples]) -> bytes | None:
    """Cumulative distribution of the per-token ITL; the axis ends at the 99.5th percentile."""
    known = {arm: np.sort(gaps) / NS_PER_MS for arm, gaps in by_arm.items() if len(gaps)}
    if not known:
        return None
    figure, axes = _figure("Inter-token latency", "ms per token", "share of tokens at or below")
    for place, (arm, gaps) in enumerate(known.items()):
        axes.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), label=arm, color=_colour(place))
        axes.axvline(float(np.median(gaps)), color=_colour(place), linestyle=":", linewidth=1)
    axes.set_xlim(0, max(float(np.percentile(gaps, 99.5)) for gaps in known.values()) * 1.05)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, loc="lower right")
    return _png(figure)


def kept_share_per_layer(summary: Mapping[str, Any]) -> bytes | None:
    """Share of KV blocks that the indexer scored, by layer, with the target."""
    spins = {arm: figures["spin"] for arm, figures in summary["arms"].items() if figures["spin"]}
    if not spins:
        return None
    figure, axes = _figure("KV blocks scored by the indexer", "indexer layer", "kept share")
    for place, (arm, spin) in enumerate(spins.items(), start=1):
        shares = [np.nan if share is None else share for share in spin["kept_share"]]
        layers = range(len(shares))
        axes.plot(layers, shares, "o-", markersize=4, label=arm, color=_colour(place))
        axes.axhline(1 - spin["target_sparsity"], color=_colour(place), linestyle=":", linewidth=1)
    axes.set_ylim(0, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, loc="lower right")
    return _png(figure)


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _figure(title: str, x_label: str, y_label: str) -> tuple[Any, Any]:
    # not pyplot: it keeps every figure in a global list
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
