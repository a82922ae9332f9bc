"""PASS, FAIL, INCONCLUSIVE: from intervals, and how often each is said under known noise."""

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.spec_gate import Gate, Margins
from harness.stats import paired_ratio, welch_ratio
from harness.verdict import Outcome, decide, limit_of, verdict, worst

ratios = st.floats(0.5, 2.0)


@pytest.mark.parametrize(
    ("ci95", "higher", "expected"),
    [
        ((0.985, 1.01), True, Outcome.PASS),
        ((0.975, 1.01), True, Outcome.INCONCLUSIVE),
        ((0.90, 0.975), True, Outcome.FAIL),
        ((0.99, 1.025), False, Outcome.PASS),
        ((1.01, 1.06), False, Outcome.INCONCLUSIVE),
        ((1.04, 1.08), False, Outcome.FAIL),
        (None, True, Outcome.INCONCLUSIVE),
    ],
)
def test_whole_interval_decides(
    ci95: tuple[float, float] | None, higher: bool, expected: Outcome
) -> None:
    """Only an interval that lies wholly on one side of the limit passes or fails."""
    metric = "output_tok_s" if higher else "itl_p50"
    limit = limit_of(metric, 0.02 if higher else 0.03)
    middle = 1.0 if ci95 is None else math.sqrt(ci95[0] * ci95[1])
    assert decide(ci95, [middle] * 5, limit, higher_is_better=higher) is expected


def test_one_wild_pair_does_not_fail() -> None:
    """An interval beyond the limit with fewer than 80 % of the pairs on its side stays open."""
    pairs = [1.001, 1.001, 1.001, 1.001, 0.1]
    assert decide((0.5, 0.9), pairs, 0.98, higher_is_better=True) is Outcome.INCONCLUSIVE


def test_negative_margin_asks_for_a_gain() -> None:
    """A margin of -10 % passes 15 % more throughput and fails 2 % more."""
    limit = limit_of("output_tok_s", -0.1)
    assert decide((1.12, 1.18), [1.15] * 3, limit, higher_is_better=True) is Outcome.PASS
    assert decide((1.01, 1.03), [1.02] * 3, limit, higher_is_better=True) is Outcome.FAIL


@given(ratios, ratios, st.lists(ratios, min_size=2, max_size=6), st.floats(0.01, 0.3))
def test_higher_and_lower_are_mirrors(a: float, b: float, pairs: list[float], m: float) -> None:
    """A ratio judged as throughput gives what its inverse gives as latency."""
    ci95, limit = (min(a, b), max(a, b)), 1 - m
    inverse = (1 / ci95[1], 1 / ci95[0])
    there = decide(ci95, pairs, limit, higher_is_better=True)
    back = decide(inverse, [1 / p for p in pairs], 1 / limit, higher_is_better=False)
    assert there is back


def test_worst_outcome_wins() -> None:
    """One FAIL fails all, one INCONCLUSIVE leaves the rest open, nothing is no pass."""
    passed, open_, failed = Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.FAIL
    assert worst([passed, failed, open_]) is failed
    assert worst([passed, open_]) is open_
    assert worst([passed, passed]) is passed
    assert worst([]) is open_


def two_looks(random: Random, change: float, noise: float, margin: float) -> Outcome:
    """A campaign of 5 pairs, then 10 if it was open; `change` is the arm's true log ratio."""
    logs: list[float] = []
    outcome = Outcome.INCONCLUSIVE
    for pairs in (5, 10):
        if outcome is Outcome.INCONCLUSIVE:
            logs += [random.gauss(change, noise) for _ in range(pairs - len(logs))]
            found = paired_ratio([1.0] * pairs, [math.exp(d) for d in logs])
            limit = limit_of("output_tok_s", margin)
            outcome = decide(found.ci95, found.per_pair, limit, higher_is_better=True)
    return outcome


def share(outcome: Outcome, change: float, noise: float = 0.01, margin: float = 0.02) -> float:
    """How often 2,000 campaigns end so."""
    random = Random(11)
    return sum(two_looks(random, change, noise, margin) is outcome for _ in range(2000)) / 2000


def test_error_rates_of_the_two_looks() -> None:
    """At the limit itself either error stays within 5 %; at no change FAIL does not occur."""
    at_limit = math.log(0.98)
    # 5 % and four standard errors of a share of 2,000
    assert share(Outcome.FAIL, at_limit) <= 0.07
    assert share(Outcome.PASS, at_limit) <= 0.07
    assert share(Outcome.FAIL, 0.0) == 0


def test_power_of_the_two_looks() -> None:
    """With 1 % noise 5 % less throughput fails nearly always, and no change passes mostly."""
    assert share(Outcome.FAIL, math.log(0.95)) > 0.97
    assert share(Outcome.PASS, 0.0) > 0.9


def test_welch_interval_covers() -> None:
    """Of 2,000 comparisons of 4 and 7 values with unequal noise, about 95 % cover no change."""
    random = Random(3)
    covered = 0
    for _ in range(2000):
        one = [math.exp(random.gauss(0, 0.01)) for _ in range(4)]
        two = [math.exp(random.gauss(0, 0.03)) for _ in range(7)]
        ci95 = welch_ratio(one, two).ci95
        assert ci95 is not None
        covered += ci95[0] <= 1 <= ci95[1]
    # rounding the degrees of freedom down makes it a little wider than 95 %
    assert 0.93 <= covered / 2000 <= 0.98


def test_welch_by_hand() -> None:
    """Equal spreads of two values each: two degrees of freedom, 4.303 from the table."""
    one, two = [1.0, math.exp(0.02)], [math.exp(0.10), math.exp(0.12)]
    found = welch_ratio(one, two)
    assert found.estimate == pytest.approx(math.exp(0.10))
    assert found.ci95 is not None
    # each mean has variance (0.02^2 / 2) / 2
    half = 4.303 * math.sqrt(2 * 0.0002 / 2)
    assert found.ci95[1] == pytest.approx(math.exp(0.10 + half), rel=1e-4)
    assert welch_ratio([1.0], [2.0]).ci95 is None
    with pytest.raises(ValueError):
        welch_ratio([], [1.0])


def summary_with(per_pair: list[float], prefix: float | None = 1.0) -> dict[str, Any]:
    """As much of a summary as a verdict reads."""
    found = paired_ratio([1.0] * len(per_pair), per_pair)
    ratio = {"estimate": found.estimate, "ci95": found.ci95, "per_pair": per_pair}
    inverse = paired_ratio(per_pair, [1.0] * len(per_pair))
    itl = {"estimate": inverse.estimate, "ci95": inverse.ci95, "per_pair": inverse.per_pair}
    return {
        "ratios": {"spin": {"output_tok_s": ratio, "itl_p50": itl}},
        "parity": {"spin": {"equal_prefix_share": prefix}},
    }


@pytest.mark.parametrize(
    ("prefix", "expected"), [(0.95, "PASS"), (0.5, "FAIL"), (None, "INCONCLUSIVE")]
)
def test_parity_floor(prefix: float | None, expected: str) -> None:
    """A fast arm whose answers are not the baseline's fails; unknown answers are no pass."""
    judged = verdict(summary_with([1.2, 1.21, 1.2], prefix), Gate(parity_floor=0.9))
    assert judged["outcome"] == expected
    assert [check["check"] for check in judged["arms"]["spin"]["checks"]] == [
        "output_tok_s", "itl_p50", "parity",
    ]  # fmt: skip


def test_metric_without_a_margin_is_not_judged() -> None:
    """A margin of null leaves its metric out."""
    judged = verdict(summary_with([0.5, 0.5, 0.5]), Gate(margins=Margins(output_tok_s=None)))
    assert [check["check"] for check in judged["arms"]["spin"]["checks"]] == ["itl_p50"]
    assert judged["outcome"] == "FAIL"
