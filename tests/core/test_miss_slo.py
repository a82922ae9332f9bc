"""Choosing the sparsity that holds a bound on the miss, against layers with known curves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_spin.config import ConfigError, SpinConfig
from sglang_spin.core.miss_slo import SLACK, MissSlo


def _settle(slo: MissSlo, curves: list[tuple[float, float]], rounds: int = 80) -> list[float]:
    """Misses after `rounds` decisions; a curve (a, p) misses a * sparsity ** p."""
    for _ in range(rounds):
        slo.decide([a * slo.sparsity**p for a, p in curves])
    return [a * slo.sparsity**p for a, p in curves]


@given(
    curves=st.lists(st.tuples(st.floats(0, 1), st.floats(1, 3)), min_size=1, max_size=6),
    bound=st.floats(0.01, 0.3),
    target=st.floats(0.05, 0.9),
)
def test_no_layer_stays_above_the_bound(
    curves: list[tuple[float, float]], bound: float, target: float
) -> None:
    """Layers that miss no more than blocks drawn by lot would end within the bound."""
    slo = MissSlo(bound, target)
    assert max(_settle(slo, curves)) <= bound + 1e-9
    assert slo.least <= slo.sparsity <= target


def test_sparsity_comes_back_when_the_load_becomes_easy() -> None:
    """After a hard phase, sparsity climbs to the target, in steps and never beyond."""
    slo = MissSlo(0.05, 0.5)
    _settle(slo, [(1.0, 2.0)])
    assert slo.sparsity < 0.25
    _settle(slo, [(0.05, 2.0)])
    assert slo.sparsity == 0.5


def test_between_slack_and_bound_nothing_moves() -> None:
    """A miss in the dead band changes nothing, so decisions do not swing."""
    slo = MissSlo(0.05, 0.5)
    slo.sparsity = 0.3
    assert slo.decide([0.0, SLACK * 0.05]) is None
    assert slo.decide([0.05, 0.0]) is None
    assert slo.sparsity == 0.3


def test_worse_than_chance_stops_at_the_floor() -> None:
    """A layer that misses more than a lottery would is not followed below the bound itself."""
    slo = MissSlo(0.1, 0.5)
    for _ in range(20):
        slo.decide([0.9])
    assert slo.sparsity == 0.1
    assert slo.decide([0.9]) is None


@pytest.mark.parametrize(
    "options", [{"miss_slo": 0.05}, {"miss_slo": 0.05, "audit_every": 8, "policy": "dense"}]
)
def test_an_slo_without_audits_is_refused(options: dict) -> None:
    """What cannot be measured cannot be held."""
    with pytest.raises(ConfigError, match="miss_slo needs audit_every"):
        SpinConfig(**options)
