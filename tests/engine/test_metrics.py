"""The exporter's series, the dashboard that shows them, and the reading of counters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.core.totals import Totals, pack, unpack
from sglang_spin.engine import reader as reading
from sglang_spin.engine.metrics import PREFIX, WINDOW_S, Exporter, series_names
from sglang_spin.engine.reader import Reader
from sglang_spin.engine.slo import SloKeeper
from sglang_spin.engine.telemetry import Telemetry

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "sglang-spin.json"
LAYERS, TOPK = 2, 100
EVEN = Allotment.uniform(0.4, LAYERS)
LABELS = {"model_name": "m", "tp_rank": 0}


def _state(**options: Any) -> SpinState:
    config = SpinConfig(enabled=True, audit_every=4, **options)
    return SpinState(config, Shape(LAYERS, 4, 20, 60, TOPK))


def _totals(state: SpinState) -> Totals:
    return unpack(pack(state), LAYERS, TOPK)


def _audited(state: SpinState, audits: int, missed: list[int]) -> None:
    """So many audits of row 1, each of which misses missed[layer] entries."""
    for layer in range(LAYERS):
        add = torch.tensor([1, TOPK, missed[layer], 4, 1])
        state.audit.tallies[layer, 1] += add * audits
        column = int((missed[layer] >= state.audit.edges).sum()) - 1
        state.audit.histogram[layer, 1, column] += audits
    state.counters.scalars[0] += audits


@pytest.fixture
def exporter() -> Any:
    """An exporter on a registry that forgets it afterwards."""
    from prometheus_client import REGISTRY

    made = Exporter(LABELS, [3, 5])
    yield made
    for collector in (*made.gauges.values(), *made.counters.values()):
        REGISTRY.unregister(collector)


def _exposed() -> dict[str, float]:
    from prometheus_client import REGISTRY

    found = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                layer = sample.labels.get("layer")
                found[sample.name.removeprefix(PREFIX) + (f"[{layer}]" if layer else "")] = (
                    sample.value
                )
    return found


def test_every_series_of_the_dashboard_exists_and_every_series_is_shown() -> None:
    """The dashboard is valid JSON whose expressions use exactly the exporter's names."""
    text = DASHBOARD.read_text()
    dashboard = json.loads(text)
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    used = {name for e in expressions for name in re.findall(rf"{PREFIX}\w+", e)}
    assert used == series_names()
    assert set(re.findall(rf"{PREFIX}\w+", text)) == used


def test_series_are_those_that_are_exposed(exporter: Exporter) -> None:
    """After a publication with audits, /metrics holds every declared name, per layer where so."""
    state = _state()
    state.counters.kept += 6
    state.counters.seen += 10
    _audited(state, 10, [5, 50])
    exporter.publish(_totals(state), 0.0, EVEN)
    exposed = _exposed()
    assert {PREFIX + name.partition("[")[0] for name in exposed} == series_names()
    assert exposed["miss_mean[3]"] == 0.05
    assert exposed["miss_p99[5]"] >= 0.5
    assert exposed["kept_share[5]"] == 0.6
    assert exposed["exploration_yield[3]"] == 0.25
    assert exposed["missed_entries_total[5]"] == 500
    assert exposed["sparsity"] == 0.4
    assert exposed["layer_sparsity[3]"] == exposed["layer_sparsity[5]"] == 0.4
    exporter.publish(_totals(state), 1.0, Allotment(0.35, (0.5, 0.2), (1, 0)))
    exposed = _exposed()
    assert exposed["sparsity"] == 0.35
    assert (exposed["layer_sparsity[3]"], exposed["layer_sparsity[5]"]) == (0.2, 0.5)


def test_gauges_forget_and_counters_do_not(exporter: Exporter) -> None:
    """A gauge shows the last minute; a counter the time since start; older totals are ignored."""
    state = _state()
    _audited(state, 10, [0, 40])
    exporter.publish(_totals(state), 0.0, EVEN)
    old = _totals(state)
    _audited(state, 10, [0, 10])
    exporter.publish(_totals(state), WINDOW_S, EVEN)
    assert _exposed()["miss_mean[5]"] == 0.1
    exporter.publish(old, WINDOW_S + 1, EVEN)
    assert _exposed()["missed_entries_total[5]"] == 500
    assert _exposed()["audits_total"] == 20


def test_a_gauge_without_audits_keeps_its_value(exporter: Exporter) -> None:
    """Minutes without an audit are not minutes without a miss."""
    state = _state()
    _audited(state, 10, [0, 40])
    exporter.publish(_totals(state), 0.0, EVEN)
    state.counters.scalars[0] += 5
    exporter.publish(_totals(state), 2 * WINDOW_S, EVEN)
    exporter.publish(_totals(state), 4 * WINDOW_S, EVEN)
    assert _exposed()["miss_mean[5]"] == 0.4


def test_a_copy_is_looked_at_some_forwards_later() -> None:
    """Every READ_EVERY forwards one copy, READ_LAG forwards later its totals, none in between."""
    state = _state()
    reader = Reader(state)
    due = {}
    for forward in range(1, 3 * reading.READ_EVERY):
        state.counters.scalars[0] += 1
        if (totals := reader.after_forward()) is not None:
            due[forward] = totals.scalars["steps"]
    lag, every = reading.READ_LAG, reading.READ_EVERY
    assert due == {every + lag: every, 2 * every + lag: 2 * every}


def test_an_idle_scheduler_reads_once(exporter: Exporter) -> None:
    """The idle loop spins: only the first round after a forward copies anything."""
    reader = Reader(_state())
    assert reader.at_rest() is not None
    assert reader.at_rest() is None
    reader.after_forward()
    assert reader.at_rest() is not None


def test_nothing_is_read_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without metrics and without an SLO no counter is copied."""
    monkeypatch.setattr(reading, "pack", lambda _: pytest.fail("counters were read"))
    telemetry = Telemetry(Reader.__new__(Reader), None, None)
    for _ in range(100):
        telemetry.after_forward()
        telemetry.at_rest()


def test_prometheus_is_not_imported_before_it_is_wanted() -> None:
    """Importing the exporter leaves prometheus_client alone: it decides once how to count."""
    code = "import sys, sglang_spin.engine.metrics; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_ranks_decide_alike_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """The keeper changes the budgets of later steps, logs why, and depends on the totals alone."""
    states = [_state(miss_slo=0.05, sparsity=0.5) for _ in range(2)]
    before = states[0].budgets.table.clone()
    keepers = [SloKeeper(state) for state in states]
    with caplog.at_level("INFO", logger="sglang_spin.engine.slo"):
        for missed in ([1, 15], [7, 8], [0, 1], [0, 0], [0, 0]):
            for state, keeper in zip(states, keepers, strict=True):
                _audited(state, 40, missed)
                keeper.judge(_totals(state))
    budgets = [state.budgets for state in states]
    assert torch.equal(budgets[0].table, budgets[1].table)
    assert torch.equal(budgets[0].layer_class, budgets[1].layer_class)
    assert budgets[0].table[budgets[0].layer_class.long()].sum() > before.sum()
    found = "misses 0.150 of its top-k, above 0.05: budget moves between layers, sparsity stays 0.5"
    assert f"indexer layer 1 {found} (0.7" in caplog.text
    assert "indexer layer 1 misses 0.080 of its top-k, above 0.05: sparsity 0.5 -> " in caplog.text
    assert "every layer misses less than 0.5 of the bound 0.05: sparsity 0." in caplog.text


def test_few_audits_decide_nothing() -> None:
    """A handful of audits is noise."""
    state = _state(miss_slo=0.05, sparsity=0.5)
    _audited(state, 31, [90, 90])
    SloKeeper(state).judge(_totals(state))
    assert state.budgets.allotment.sparsity == 0.5
