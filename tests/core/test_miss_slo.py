"""Choosing the sparsities that hold a bound on the miss, against layers with known curves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import ConfigError, SpinConfig
from sglang_spin.core.allot import CURVE
from sglang_spin.core.budget import CLASSES, Allotment, budget_table, class_budgets
from sglang_spin.core.miss_slo import AIM, SLACK, MissSlo

FLOOR = 3
Curves = list[tuple[float, float]]


def _misses(slo: MissSlo, curves: Curves) -> list[float]:
    """A curve (a, p) misses a * sparsity ** p."""
    return [a * s**p for (a, p), s in zip(curves, slo.allotment.by_layer, strict=True)]


def _settle(slo: MissSlo, curves: Curves, rounds: int = 80) -> list[float]:
    """Misses after `rounds` decisions, or when one changes nothing, as then none will."""
    for _ in range(rounds):
        if slo.decide(_misses(slo, curves)) is None:
            break
    return _misses(slo, curves)


def _kept(allotment: Allotment, blocks: int) -> list[int]:
    """Kept blocks over all layers, by row size."""
    table = class_budgets(blocks, allotment, FLOOR)
    total: list[int] = table[list(allotment.layer_class)].sum(0).tolist()
    return total


@settings(max_examples=300, deadline=None)
@given(
    curves=st.lists(st.tuples(st.floats(0, 1), st.floats(1, 3)), min_size=1, max_size=9),
    bound=st.floats(0.01, 0.3),
    target=st.floats(0.05, 0.9),
)
def test_no_layer_stays_above_the_bound(curves: Curves, bound: float, target: float) -> None:
    """Layers that miss no more than blocks drawn by lot would end within the bound."""
    slo = MissSlo(bound, target, len(curves))
    assert max(_settle(slo, curves)) <= bound + 1e-9
    assert slo.least - 1e-9 <= slo.sparsity <= target


@settings(max_examples=300, deadline=None)
@given(
    misses=st.lists(st.floats(0, 0.6), min_size=1, max_size=30),
    bound=st.floats(0.01, 0.3),
    target=st.floats(0.05, 0.9),
)
def test_what_a_decision_is(misses: list[float], bound: float, target: float) -> None:
    """At most four classes, each some layer's, within the limits; a layer that misses more never
    gets less; what all layers keep of a row of any size is the total to a block a layer, and never
    more; the worst layer is expected to miss no more than with even budgets."""
    slo = MissSlo(bound, target, len(misses))
    decision = slo.decide(misses)
    assert (decision is None) or max(misses) > bound
    allotment = slo.allotment
    assert 1 <= len(allotment.classes) <= CLASSES
    assert set(allotment.layer_class) == set(range(len(allotment.classes)))
    assert list(allotment.classes) == sorted(set(allotment.classes), reverse=True)
    least, most = min(bound, target), (1 + target) / 2
    assert all(least - 1e-4 <= s <= most + 1e-4 for s in allotment.classes)
    order = sorted(range(len(misses)), key=lambda i: misses[i])
    ranked = [allotment.by_layer[i] for i in order]
    assert ranked == sorted(ranked, reverse=True)
    layers, blocks = len(misses), 200
    even = (budget_table(blocks, allotment.sparsity, FLOOR) * layers).tolist()
    for have, total in zip(_kept(allotment, blocks), even, strict=True):
        assert total - layers < have <= total
    expected = [m * (s / target) ** CURVE for m, s in zip(misses, allotment.by_layer, strict=True)]
    alike = max(misses) * (allotment.sparsity / target) ** CURVE
    # less than a tenth of the bound is taken for a tenth: layers there may be thought worse
    assert max(expected) <= max(alike, 0.1 * bound) * 1.01


def test_budget_moves_while_the_total_can_hold_the_bound() -> None:
    """One bad layer among good ones is served by them, and the total stays."""
    slo = MissSlo(0.05, 0.5, 8)
    curves = [(0.05, 2.0)] * 7 + [(1.0, 2.0)]
    decision = slo.decide(_misses(slo, curves))
    assert decision is not None
    assert decision.reason.startswith(
        "indexer layer 7 misses 0.250 of its top-k, above 0.05: budget moves between layers, "
        "sparsity stays 0.5 (0."
    )
    assert decision.reason.endswith(" in 7)")
    assert max(_settle(slo, curves)) <= 0.05
    assert slo.sparsity == 0.5
    assert slo.decide(_misses(slo, curves)) is None


def test_sparsity_falls_where_the_total_cannot_hold_the_bound() -> None:
    """Where most layers miss too much none can give enough; the sentence says how far it fell."""
    slo = MissSlo(0.05, 0.5, 4)
    decision = slo.decide(_misses(slo, [(1.0, 2.0)] * 3 + [(0.3, 2.0)]))
    assert decision is not None
    assert "above 0.05: sparsity 0.5 -> 0.25 (0.3783 in 3, 0.2072 in 0-2)" in decision.reason
    assert max(_misses(slo, [(1.0, 2.0)] * 3 + [(0.3, 2.0)])) <= AIM * 0.05 + 1e-3


def test_sparsity_comes_back_when_the_load_becomes_easy() -> None:
    """After a hard phase, sparsity climbs to the target, in steps and never beyond."""
    slo = MissSlo(0.05, 0.5, 3)
    _settle(slo, [(1.0, 2.0)] * 3)
    assert slo.sparsity < 0.25
    _settle(slo, [(0.05, 2.0)] * 3)
    assert slo.sparsity == 0.5
    assert slo.allotment == Allotment.uniform(0.5, 3)


def test_between_slack_and_bound_nothing_moves() -> None:
    """A miss in the dead band changes nothing, so decisions do not swing."""
    slo = MissSlo(0.05, 0.5, 2)
    slo.allotment = Allotment.uniform(0.3, 2)
    assert slo.decide([0.0, SLACK * 0.05]) is None
    assert slo.decide([0.05, 0.0]) is None
    assert slo.sparsity == 0.3


def test_worse_than_chance_stops_at_the_floor() -> None:
    """A layer that misses more than a lottery would is not followed below the bound itself, and
    the others do not follow it."""
    slo = MissSlo(0.1, 0.5, 2)
    for _ in range(20):
        slo.decide([0.9, 0.02])
    assert slo.allotment.by_layer[0] == 0.1
    assert slo.allotment.by_layer[1] > 0.5
    assert slo.decide([0.9, 0.02]) is None
    alone = MissSlo(0.1, 0.5, 1)
    for _ in range(20):
        alone.decide([0.9])
    assert alone.sparsity == 0.1
    assert alone.decide([0.9]) is None


def test_a_single_bad_reading_is_remembered_for_a_while() -> None:
    """What a layer gave up after one bad reading returns as better ones outweigh it."""
    slo = MissSlo(0.05, 0.5, 2)
    slo.decide([0.2, 0.01])
    first = slo.allotment.by_layer[0]
    slo.decide([0.001, 0.06])
    assert slo.allotment.by_layer[0] > first


@pytest.mark.parametrize("blocks", [0, 1, 5, 64])
def test_equal_budgets_are_the_plain_table(blocks: int) -> None:
    """One class is budget_table, bit for bit."""
    for sparsity in (0.0, 0.1, 0.4, 0.95):
        table = class_budgets(blocks, Allotment.uniform(sparsity, 7), FLOOR)
        assert table.tolist() == [budget_table(blocks, sparsity, FLOOR).tolist()]


@pytest.mark.parametrize(
    "options", [{"miss_slo": 0.05}, {"miss_slo": 0.05, "audit_every": 8, "policy": "dense"}]
)
def test_an_slo_without_audits_is_refused(options: dict) -> None:
    """What cannot be measured cannot be held."""
    with pytest.raises(ConfigError, match="miss_slo needs audit_every"):
        SpinConfig(**options)
