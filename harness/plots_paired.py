"""Ratios to the baseline: every pair, the interval, and the limit of the gate."""

from collections.abc import Mapping
from typing import Any

from harness.drawing import as_png, colour, new_figure

_TITLES = {
    "output_tok_s": "Output throughput over stock (more is better)",
    "itl_p50": "Median ITL over stock (less is better)",
}


def paired_ratios(summary: Mapping[str, Any]) -> bytes | None:
    """A panel for each metric: a row for each arm, a dot for each pair, the 95 % t-interval."""
    arms = [arm for arm in summary["ratios"] if summary["ratios"][arm]["output_tok_s"]["per_pair"]]
    if not arms:
        return None
    figure, panels = new_figure(*_TITLES.values())
    for axes, metric in zip(panels, _TITLES, strict=True):
        for place, arm in enumerate(arms, start=1):
            _row(axes, place, summary["ratios"][arm][metric])
        limit = _limit(summary, metric)
        if limit is not None:
            axes.axvline(limit, color="#b3261e", linestyle="--", linewidth=1, label="gate limit")
        axes.axvline(1, color="#999", linewidth=1, label="stock")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.set_yticks(range(1, len(arms) + 1), arms)
        axes.set_ylim(0.4, len(arms) + 0.6)
        axes.grid(visible=False)
    panels[-1].set_xlabel("ratio, arm over stock")
    return as_png(figure)


def _row(axes: Any, place: int, ratio: Mapping[str, Any]) -> None:
    pairs = ratio["per_pair"]
    axes.plot(pairs, [place] * len(pairs), "o", color=colour(place), alpha=0.45, markersize=5)
    if ratio["ci95"] is not None:
        axes.plot(ratio["ci95"], [place, place], "|-", color=colour(place), linewidth=2)
    if ratio["estimate"] is not None:
        axes.plot([ratio["estimate"]], [place], "D", color=colour(place), markersize=7)


def _limit(summary: Mapping[str, Any], metric: str) -> float | None:
    if summary["verdict"] is None:
        return None
    for judged in summary["verdict"]["arms"].values():
        for check in judged["checks"]:
            if check["check"] == metric:
                return float(check["limit"])
    return None
