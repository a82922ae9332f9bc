"""The plots of a campaign, as PNG bytes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.campaign import Campaign
from harness.drawing import as_png, colour, from_zero, new_figure
from harness.metrics import NS_PER_MS, Samples, itl_token_ns, pooled
from harness.plots_paired import paired_ratios
from harness.plots_server import server_over_time, spin_over_time
from harness.plots_time import itl_over_position, throughput_over_time


def all_plots(campaign: Campaign, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """PNG by file name, in the order of the report; a plot without data is left out."""
    plots = {
        "ratios.png": paired_ratios(summary),
        "throughput.png": throughput_per_pair(summary),
        "timeline.png": throughput_over_time(campaign),
        "itl.png": itl_distribution(_itl_by_arm(campaign)),
        "itl_position.png": itl_over_position(summary),
        "kept_share.png": kept_share_per_layer(summary),
        "spin_time.png": spin_over_time(campaign),
        "server.png": server_over_time(campaign),
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
    figure, (axes,) = new_figure("Output throughput by pair")
    arms = list(summary["arms"])
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        mine = [run for run in runs if run["arm"] == arm]
        x = [run["pair"] + 1 + (place - (len(arms) - 1) / 2) * width for run in mine]
        axes.bar(x, [run["output_tok_s"] for run in mine], width, label=arm, color=colour(place))
    axes.set_xticks(range(1, summary["pairs"] + 1))
    # room for the legend above the bars
    axes.set_ylim(top=1.25 * max(run["output_tok_s"] for run in runs))
    axes.set_xlabel("pair")
    axes.set_ylabel("output tok/s")
    axes.legend(frameon=False, loc="upper left", ncols=len(arms))
    return as_png(figure)


def itl_distribution(by_arm: Mapping[str, Samples]) -> bytes | None:
    """Cumulative distribution of the per-token ITL; the axis ends at the 99.5th percentile."""
    known = {arm: np.sort(gaps) / NS_PER_MS for arm, gaps in by_arm.items() if len(gaps)}
    if not known:
        return None
    figure, (axes,) = new_figure("Distribution of the inter-token latency")
    for place, (arm, gaps) in enumerate(known.items()):
        axes.plot(gaps, np.arange(1, len(gaps) + 1) / len(gaps), label=arm, color=colour(place))
        axes.axvline(float(np.median(gaps)), color=colour(place), linestyle=":", linewidth=1)
    axes.set_xlim(0, max(float(np.percentile(gaps, 99.5)) for gaps in known.values()) * 1.05)
    axes.set_ylim(0, 1)
    axes.set_xlabel("ms per token")
    axes.set_ylabel("share of tokens at or below")
    axes.legend(frameon=False, loc="lower right")
    return as_png(figure)


def kept_share_per_layer(summary: Mapping[str, Any]) -> bytes | None:
    """Share of KV blocks that the indexer scored, by layer, with the target; below it the miss."""
    spins = {arm: figures["spin"] for arm, figures in summary["arms"].items() if figures["spin"]}
    if not spins:
        return None
    misses = {arm: spin["miss_share"] for arm, spin in spins.items() if spin.get("miss_share")}
    titles = ["KV blocks scored by the indexer"]
    titles += ["Top-k entries that the prediction would have missed"] if misses else []
    figure, panels = new_figure(*titles)
    for place, (arm, spin) in enumerate(spins.items(), start=1):
        layers = indexer_layers(spin)
        _per_layer(panels[0], layers, spin["kept_share"], arm, place)
        panels[0].axhline(
            1 - spin["target_sparsity"], color=colour(place), linestyle=":", linewidth=1
        )
        if arm in misses:
            known = {n: miss for n, miss in enumerate(misses[arm]) if miss is not None}
            _per_layer(panels[1], list(known), list(known.values()), arm, place)
    panels[0].set_ylim(0, 1.02)
    panels[0].set_ylabel("kept share")
    if misses:
        from_zero(panels[1])
        panels[1].set_ylabel("miss")
    for axes in panels:
        axes.set_xlabel("layer")
    panels[0].legend(frameon=False, loc="lower right")
    return as_png(figure)


def indexer_layers(spin: Mapping[str, Any]) -> list[int]:
    """The layers that `kept_share` is of: those that report a miss, if they are as many.

    The spin block counts indexers from 0, /metrics names layers of the model, and not every layer
    has an indexer.
    """
    reported = [n for n, miss in enumerate(spin.get("miss_share") or []) if miss is not None]
    count = len(spin["kept_share"])
    return reported if len(reported) == count else list(range(count))


def _per_layer(
    axes: Any, layers: list[int], values: list[float | None], arm: str, place: int
) -> None:
    shown = [np.nan if value is None else value for value in values]
    axes.plot(layers, shown, "o-", markersize=4, label=arm, color=colour(place))
    axes.xaxis.get_major_locator().set_params(integer=True)
