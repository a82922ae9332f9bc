"""Results of different campaigns side by side. They are not paired: the machine may have drifted.

Ratios to the baseline of the same campaign are, and so a change of these ratios is what a gate
between two campaigns looks at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import ResultError
from harness.figures import ITL_FIGURES
from harness.spec_gate import Gate
from harness.stats import PairedRatio, welch_ratio
from harness.verdict import HIGHER_IS_BETTER, Outcome, ratio_check, worst

Summary = Mapping[str, Any]
# what two results must have in common to be compared at all
_SAME = ("window", "itl", "work", "servers")


def require_comparable(results: Mapping[str, Summary]) -> None:
    """Raises ResultError when a result is not valid, or two measured different things."""
    for name, summary in results.items():
        if not summary["valid"]:
            raise ResultError(f"{name}: is not valid ({summary['invalid_reasons'][0]})")
    (first_name, first), *others = results.items()
    for name, summary in others:
        for key in _SAME:
            if summary[key] != first[key]:
                raise ResultError(
                    f"{name}: its {key} ({summary[key]}) is not that of {first_name} ({first[key]})"
                )
        if summary["workload"] != first["workload"]:
            raise ResultError(
                f"{name}: its content, think time or warm-up is not that of {first_name} (workload "
                "in their spec.yaml)"
            )
        if _bases(summary) != _bases(first):
            raise ResultError(
                f"{name}: counts tokens by {_bases(summary)}, {first_name} by {_bases(first)}"
            )


def _bases(summary: Summary) -> list[str]:
    return sorted({basis for run in summary["runs"] for basis in run["itl_basis"]})


def gate_against(result: Summary, baseline: Summary, gate: Gate) -> dict[str, Any]:
    """Has any arm's ratio to stock become worse than in the baseline result?

    The same form as a campaign's own verdict. Raises ResultError without a common arm.
    """
    common = [arm for arm in result["ratios"] if arm in baseline["ratios"]]
    if not common:
        raise ResultError("the two results have no arm in common beside stock")
    arms: dict[str, Any] = {}
    for arm in common:
        checks = [
            ratio_check(metric, _change(result, baseline, arm, metric), margin)
            for metric, margin in gate.margins.model_dump().items()
            if margin is not None
        ]
        outcome = worst([Outcome(check["outcome"]) for check in checks])
        arms[arm] = {"outcome": outcome.value, "checks": checks}
    outcome = worst([Outcome(arm["outcome"]) for arm in arms.values()])
    return {"outcome": outcome.value, "arms": arms}


def _change(result: Summary, baseline: Summary, arm: str, metric: str) -> dict[str, Any]:
    """Ratio of the two results' ratios to stock, with Welch's interval."""
    pairs = [summary["ratios"][arm][metric]["per_pair"] for summary in (baseline, result)]
    if not all(pairs):
        return {"estimate": None, "ci95": None, "per_pair": []}
    return _plain(welch_ratio(pairs[0], pairs[1]))


def _plain(ratio: PairedRatio) -> dict[str, Any]:
    ci95 = None if ratio.ci95 is None else list(ratio.ci95)
    return {"estimate": ratio.estimate, "ci95": ci95, "per_pair": []}


def comparison_table(results: Mapping[str, Summary]) -> list[str]:
    """Lines of a Markdown table: every arm of every result, and its ratio to the first result's.

    The interval is Welch's over runs: it holds the noise of runs, but no drift of the machine
    between the campaigns. The paired ratio to stock has neither in it.
    """
    first = next(iter(results.values()))
    lines = [
        "| result | arm | output tok/s | to the first | median ITL ms | to the first "
        "| paired tok/s over stock | paired ITL over stock |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, summary in results.items():
        for arm in summary["arms"]:
            cells = [name, arm]
            for metric in HIGHER_IS_BETTER:
                cells += _cells(summary, first, arm, metric)
            cells += [_ratio_text(summary["ratios"].get(arm, {}).get(m)) for m in HIGHER_IS_BETTER]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(summary: Summary, first: Summary, arm: str, metric: str) -> list[str]:
    own, theirs = (run_values(result, arm, metric) for result in (summary, first))
    shown = f"{sum(own) / len(own):.2f}" if own else "n/a"
    if summary is first or not own or not theirs:
        return [shown, ""]
    return [shown, _ratio_text(_plain(welch_ratio(theirs, own)))]


def run_values(summary: Summary, arm: str, metric: str) -> list[float]:
    """The metric of every run of an arm that counts."""
    runs: Sequence[Any] = [r for r in summary["runs"] if r["arm"] == arm and not r["problems"]]
    values = [
        run["output_tok_s"] if metric == "output_tok_s" else run[ITL_FIGURES[summary["itl"]]]["p50"]
        for run in runs
    ]
    return [value for value in values if value]


def _ratio_text(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None or ratio["estimate"] is None:
        return ""
    if ratio["ci95"] is None:
        return f"{ratio['estimate']:.3f}"
    return f"{ratio['estimate']:.3f} ({ratio['ci95'][0]:.3f} to {ratio['ci95'][1]:.3f})"
