"""`summary.json`: the figures of a campaign, computed from its raw records alone."""

from collections.abc import Sequence
from typing import Any

from harness.campaign import Campaign
from harness.counters import SpinCounters
from harness.expectations import expectations
from harness.figures import ITL_FIGURES, Figures, run_figures, spin_figures
from harness.noise import workload_hash
from harness.parity import parity
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.spec_arm import BASELINE
from harness.spin_series import MISS, mean_per_layer, per_layer
from harness.stats import geometric_mean, paired_ratio
from harness.verdict import verdict

SCHEMA = 1


def summarise(campaign: Campaign) -> dict[str, Any]:
    """Figures per arm and run, ratios to the baseline, and whether they count.

    An arm's figure is the geometric mean over its runs, so that the ratio of two arms' figures is
    the paired estimate. `ratio` is of the first treatment, `ratios` of each.
    """
    spec = campaign.spec
    runs = [run_figures(run, spec) for run in campaign.runs]
    reasons = campaign.invalid_reasons()
    itl = ITL_FIGURES[spec.itl]
    ratios = {arm: _ratios(runs, arm, campaign.pairs, itl) for arm in spec.treatments}
    made = {
        "schema": SCHEMA,
        "name": spec.name,
        "valid": not reasons,
        "invalid_reasons": reasons,
        "notes": campaign.notes(),
        "window": spec.window,
        "itl": spec.itl,
        "workload": workload_hash(spec),
        "work": spec.workload.sentence(),
        "servers": spec.servers,
        "pairs": campaign.pairs,
        "stopped": campaign.stopped,
        "arms": {
            arm: _arm_figures(
                [run for run in campaign.runs if run.arm == arm],
                [figures for figures in runs if figures["arm"] == arm],
                spec,
            )
            for arm in spec.arms
        },
        "ratio": ratios[spec.treatments[0]],
        "ratios": ratios,
        "parity": {arm: parity(campaign.runs, arm) for arm in spec.treatments},
        "runs": runs,
    }
    judged = verdict(made, spec.gate) if spec.gate and not reasons else None
    return made | {"verdict": judged}


def _arm_figures(runs: Sequence[ArmRun], figures: Sequence[Figures], spec: Spec) -> Figures:
    requests = [(run, record) for run in runs for record in run.records]
    sound = sum(record.error is None and record.saw_done for _, record in requests)
    cached = [ok for run in runs for ok in _cached_ok(run, spec)]
    return {
        "output_tok_s": _mean([run["output_tok_s"] for run in figures]),
        "output_tok_s_by_window": {
            name: _mean([run["output_tok_s_by_window"][name] for run in figures])
            for name in ("full_batch", "occupancy_95", "full_run")
        },
        **{name: _mean_percentiles(figures, name) for name in ITL_FIGURES.values()},
        "ttft_ms": _mean_percentiles(figures, "ttft_ms"),
        "tpot_ms": _mean_percentiles(figures, "tpot_ms"),
        "e2e_ms": _mean_percentiles(figures, "e2e_ms"),
        "tokens_per_chunk": _mean([run["tokens_per_chunk"] for run in figures]),
        "repetition_ratio": _mean([run["repetition_ratio"] for run in figures]),
        "goodput_req_s": _mean([(run["goodput"] or {}).get("req_s") for run in figures]),
        "cached_tokens_ok": bool(cached) and all(cached),
        "requests_ok": bool(requests) and sound == len(requests),
        "requests": {"ok": sound, "total": len(requests)},
        "spin": spin_figures(
            _total([run.spin for run in runs if run.spin is not None]),
            mean_per_layer([per_layer(run.telemetry, MISS) for run in runs]),
        ),
    }


def _cached_ok(run: ArmRun, spec: Spec) -> list[bool]:
    couples = zip(run.records, expectations(run, spec), strict=True)
    return [
        record.cached_tokens is not None
        and expected.cached[0] <= record.cached_tokens <= expected.cached[1]
        for record, expected in couples
    ]


def _total(parts: Sequence[SpinCounters]) -> SpinCounters | None:
    total: SpinCounters | None = None
    for part in parts:
        total = part if total is None else total.plus(part)
    return total


def _mean_percentiles(figures: Sequence[Figures], name: str) -> dict[str, float | None]:
    return {q: _mean([run[name][q] for run in figures]) for q in ("p50", "p90", "p99")}


def _mean(values: Sequence[float | None]) -> float | None:
    return geometric_mean([value for value in values if value])


def _ratios(runs: Sequence[Figures], arm: str, pairs: int, itl: str) -> dict[str, Figures]:
    """Treatment over baseline, from the pairs in which both runs are sound."""
    sound = {(run["arm"], run["pair"]): run for run in runs if not run["problems"]}
    couples = [
        (sound[BASELINE, pair], sound[arm, pair])
        for pair in range(pairs)
        if (BASELINE, pair) in sound and (arm, pair) in sound
    ]
    return {
        "output_tok_s": _ratio([(a["output_tok_s"], b["output_tok_s"]) for a, b in couples]),
        "itl_p50": _ratio([(a[itl]["p50"], b[itl]["p50"]) for a, b in couples]),
    }


def _ratio(couples: Sequence[tuple[float | None, float | None]]) -> Figures:
    known = [(a, b) for a, b in couples if a and b]
    if not known:
        return {"estimate": None, "ci95": None, "per_pair": []}
    ratio = paired_ratio([a for a, _ in known], [b for _, b in known])
    ci95 = None if ratio.ci95 is None else list(ratio.ci95)
    return {"estimate": ratio.estimate, "ci95": ci95, "per_pair": list(ratio.per_pair)}
