"""PASS, FAIL or INCONCLUSIVE: is an arm worse than the baseline by more than the margin?

Decided from the 95 % interval of the paired ratio. Each of its ends is exceeded by chance in 2.5 %
of campaigns, and a campaign looks at most twice (after `pairs`, and after `max_pairs`), so an arm
that is worse by just the margin passes, and one that is as good fails, in at most 5 % of them.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from harness.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_OK
from harness.spec_gate import Gate

HIGHER_IS_BETTER = {"output_tok_s": True, "itl_p50": False}
# a FAIL needs so many of the pairs on its side: one wild pair must not decide
AGREEMENT = 0.8


class Outcome(StrEnum):
    """Worst last but one: what cannot be decided is no pass."""

    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"


EXIT_CODES = {
    Outcome.PASS: EXIT_OK,
    Outcome.FAIL: EXIT_FAIL,
    Outcome.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    """One FAIL fails all; otherwise one INCONCLUSIVE leaves all open."""
    order = list(Outcome)
    return max(outcomes, key=order.index, default=Outcome.INCONCLUSIVE)


def limit_of(metric: str, margin: float) -> float:
    """The ratio that an arm must keep: at least 1 - margin where more is better, else 1 + margin
    at most."""
    return 1 - margin if HIGHER_IS_BETTER[metric] else 1 + margin


def decide(
    ci95: Sequence[float] | None, per_pair: Sequence[float], limit: float, *, higher_is_better: bool
) -> Outcome:
    """From the interval of a ratio, its pairs (none if they are not paired), and its limit."""
    if ci95 is None:
        return Outcome.INCONCLUSIVE
    sign = 1 if higher_is_better else -1
    ends = sorted(sign * math.log(end) for end in ci95)
    bound = sign * math.log(limit)
    if ends[0] > bound:
        return Outcome.PASS
    if ends[1] >= bound:
        return Outcome.INCONCLUSIVE
    worse = [sign * math.log(ratio) < max(0.0, bound) for ratio in per_pair]
    agreed = sum(worse) >= AGREEMENT * len(worse)
    return Outcome.FAIL if agreed else Outcome.INCONCLUSIVE


def verdict(summary: Mapping[str, Any], gate: Gate) -> dict[str, Any]:
    """Outcome of the campaign, of each arm, and of each check. Meaningless for invalid results."""
    arms = {
        arm: _arm_verdict(ratios, summary["parity"][arm], gate)
        for arm, ratios in summary["ratios"].items()
    }
    outcome = worst([Outcome(arm["outcome"]) for arm in arms.values()])
    return {"outcome": outcome.value, "arms": arms}


def _arm_verdict(
    ratios: Mapping[str, Any], parity: Mapping[str, Any], gate: Gate
) -> dict[str, Any]:
    checks = [
        ratio_check(metric, ratios[metric], margin)
        for metric, margin in gate.margins.model_dump().items()
        if margin is not None
    ]
    if gate.parity_floor is not None:
        checks.append(_parity_check(parity, gate.parity_floor))
    outcome = worst([Outcome(check["outcome"]) for check in checks])
    return {"outcome": outcome.value, "checks": checks}


def ratio_check(metric: str, ratio: Mapping[str, Any], margin: float) -> dict[str, Any]:
    """One metric against its margin. ratio: estimate, ci95, per_pair of the summary."""
    limit = limit_of(metric, margin)
    outcome = decide(
        ratio["ci95"], ratio["per_pair"], limit, higher_is_better=HIGHER_IS_BETTER[metric]
    )
    word = "at least" if HIGHER_IS_BETTER[metric] else "at most"
    return {
        "check": metric,
        "outcome": outcome.value,
        "estimate": ratio["estimate"],
        "ci95": ratio["ci95"],
        "limit": limit,
        "rule": f"{word} {limit:.3f} of the baseline's",
    }


def _parity_check(parity: Mapping[str, Any], floor: float) -> dict[str, Any]:
    share = parity["equal_prefix_share"]
    outcome = Outcome.INCONCLUSIVE
    if share is not None:
        outcome = Outcome.PASS if share >= floor else Outcome.FAIL
    return {
        "check": "parity",
        "outcome": outcome.value,
        "estimate": share,
        "ci95": None,
        "limit": floor,
        "rule": f"answers equal the baseline's for at least {floor:.0%} of their tokens",
    }
