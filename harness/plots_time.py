"""What changes in the course of a run: throughput, running requests, ITL by position."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.campaign import Campaign
from harness.drawing import SECONDS, as_png, colour, from_zero, new_figure
from harness.timeline import timeline


def throughput_over_time(campaign: Campaign) -> bytes | None:
    """Tok/s and requests between first and last token, of every run, a colour for each arm."""
    lines = [
        (place, shown)
        for place, arm in enumerate(campaign.spec.arms)
        for run in campaign.runs
        if run.arm == arm and (shown := timeline(run.records)) is not None
    ]
    if not lines:
        return None
    figure, (rate, running) = new_figure(
        "Output throughput over time", "Requests between first and last token", shared_x=True
    )
    arms, labelled = list(campaign.spec.arms), set[int]()
    for place, shown in lines:
        label = arms[place] if place not in labelled else None
        labelled.add(place)
        style = {"color": colour(place), "linewidth": 1, "alpha": 0.7}
        rate.plot(shown.seconds, shown.tok_s, label=label, **style)
        running.plot(shown.seconds, shown.running, **style)
    rate.set_ylabel("tok/s")
    from_zero(rate)
    rate.legend(frameon=False, loc="lower right")
    running.set_ylabel("requests")
    from_zero(running)
    running.set_xlabel(SECONDS)
    return as_png(figure)


def itl_over_position(summary: Mapping[str, Any]) -> bytes | None:
    """Median ITL by place in the answer, the median over an arm's runs that count."""
    figure, (axes,) = new_figure("Inter-token latency by output position")
    drawn = False
    for place, arm in enumerate(summary["arms"]):
        runs = [run for run in summary["runs"] if run["arm"] == arm and not run["problems"]]
        bins: dict[float, list[float]] = {}
        for run in runs:
            for one in run["itl_by_position"]:
                bins.setdefault((one["from"] + one["to"] - 1) / 2, []).append(one["p50_ms"])
        if bins:
            x = sorted(bins)
            y = [float(np.median(bins[position])) for position in x]
            axes.plot(x, y, "o-", markersize=3, label=arm, color=colour(place))
            drawn = True
    if not drawn:
        return None
    axes.set_xlabel("position in the answer, tokens")
    axes.set_ylabel("median ms per token")
    from_zero(axes)
    axes.legend(frameon=False, loc="lower right")
    return as_png(figure)
