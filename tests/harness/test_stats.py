"""The interval and the order of the arms."""

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.stats import geometric_mean, interleaved_order, paired_ratio, t_cdf, t_quantile

# 97.5 % quantiles from the published table of Student's t
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}

positive = st.floats(0.01, 1e4)


@pytest.mark.parametrize(("df", "expected"), TABLE.items())
def test_t_quantile_matches_the_table(df: int, expected: float) -> None:
    """The quantile agrees with the table to its three decimals."""
    assert t_quantile(0.975, df) == pytest.approx(expected, abs=5e-4)


@given(st.integers(1, 60), st.floats(0, 50))
def test_t_cdf_is_symmetric_and_bounded(df: int, t: float) -> None:
    """F(-t) = 1 - F(t), within [0.5, 1] for t >= 0."""
    assert t_cdf(-t, df) == pytest.approx(1 - t_cdf(t, df), abs=1e-12)
    assert 0.5 - 1e-12 <= t_cdf(t, df) <= 1 + 1e-12


def test_paired_ratio_by_hand() -> None:
    """exp of the mean log ratio, with the t-interval of two pairs."""
    ratio = paired_ratio([100, 100], [110, 121])
    assert ratio.estimate == pytest.approx(math.sqrt(1.1 * 1.21))
    half = 12.706 * math.log(1.1) / math.sqrt(2) / math.sqrt(2)
    assert ratio.ci95 is not None
    assert ratio.ci95[1] == pytest.approx(ratio.estimate * math.exp(half), rel=1e-4)


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=8))
def test_ratio_is_symmetric(pairs: list[tuple[float, float]]) -> None:
    """Swapping the arms inverts the estimate and mirrors the interval."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.estimate == pytest.approx(1 / back.estimate, rel=1e-9)
    assert there.ci95 is not None
    assert back.ci95 is not None
    if max(there.ci95[1], back.ci95[1]) < 1e100:
        assert there.ci95[0] == pytest.approx(1 / back.ci95[1], rel=1e-6)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_estimate_is_the_ratio_of_geometric_means(pairs: list[tuple[float, float]]) -> None:
    """The arm figures in the summary divide to the paired estimate."""
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    mean_a, mean_b = geometric_mean(a), geometric_mean(b)
    assert mean_a is not None
    assert mean_b is not None
    assert paired_ratio(a, b).estimate == pytest.approx(mean_b / mean_a, rel=1e-9)


def test_interval_covers_what_it_promises() -> None:
    """Of 2,000 campaigns of three noisy pairs without a difference, about 95 % cover 1."""
    random = Random(5)
    covered = 0
    for _ in range(2000):
        arms = [[math.exp(random.gauss(0, 0.03)) for _ in range(3)] for _ in range(2)]
        ci95 = paired_ratio(*arms).ci95
        assert ci95 is not None
        covered += ci95[0] <= 1 <= ci95[1]
    # 95 % +- 4 standard errors of a share of 2,000
    assert 0.93 <= covered / 2000 <= 0.97


def test_one_pair_has_no_interval() -> None:
    """A single pair gives an estimate and no interval."""
    ratio = paired_ratio([2.0], [3.0])
    assert ratio.estimate == pytest.approx(1.5)
    assert ratio.ci95 is None


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_unusable_pairs_are_refused(a: list[float], b: list[float]) -> None:
    """No pairs, unequal numbers or a zero are an error."""
    with pytest.raises(ValueError):
        paired_ratio(a, b)


@given(st.integers(1, 10), st.integers(0, 1000))
def test_order_alternates(pairs: int, seed: int) -> None:
    """Every pair holds every arm once and runs opposite to the one before (ABBA)."""
    orders = interleaved_order(["stock", "spin", "spin-50"], pairs, seed)
    assert len(orders) == pairs
    for one, two in itertools.pairwise(orders):
        assert two == list(reversed(one))


def test_seed_picks_the_start() -> None:
    """Some seeds start with the baseline, some with the treatment."""
    starts = {interleaved_order(["stock", "spin"], 1, seed)[0][0] for seed in range(20)}
    assert starts == {"stock", "spin"}
