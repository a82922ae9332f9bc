"""The text of /metrics, the series made of it, the proof they give, and the GPUs beside them."""

import asyncio
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness.gpu import find_gpus, watching_gpus
from harness.metric_map import SGLANG, VLLM, unknown_changes
from harness.promtext import parse_metrics
from harness.proof import proof_notes, proof_problems
from harness.telemetry import CounterFell, Telemetry
from tests.harness.helpers import record

KEY = ("c_total", ())


def oracle(text: str) -> dict[Any, float]:
    """The samples as the reference parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(
    st.lists(
        st.tuples(st.text(max_size=12), st.text(max_size=12), st.floats(allow_nan=False)),
        max_size=6,
    )
)
def test_page_is_read_as_the_reference_reads_it(rows: list[tuple[str, str, float]]) -> None:
    """Counters, gauges and histograms with any label text give what prometheus_client reads."""
    registry = CollectorRegistry()
    gauge = Gauge("sglang:level", "a gauge", ["one", "two"], registry=registry)
    counter = Counter("sglang:count", "a counter", ["one"], registry=registry)
    histogram = Histogram("sglang:time", "a histogram", registry=registry)
    for one, two, value in rows:
        gauge.labels(one, two).set(value)
        counter.labels(one).inc(min(abs(value), 1e300))
        histogram.observe(value)
    text = generate_latest(registry).decode()
    page = parse_metrics(text)
    assert page.malformed == 0
    assert page.samples == oracle(text)


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    """No text raises; what is no sample is counted."""
    page = parse_metrics(text)
    assert page.malformed + len(page.samples) <= len(text.split("\n"))


@pytest.mark.parametrize(
    "line", ["a{b} 1", 'a{b="c" 1', "a", "a one", 'a{b="c"d="e"} 1', "a{} ", '{b="c"} 1']
)
def test_lines_that_are_no_samples(line: str) -> None:
    """A line that is no sample is counted and gives none."""
    page = parse_metrics(f"good 1\n{line}\n")
    assert page.samples == {("good", ()): 1.0}
    assert page.malformed == 1


def test_only_wanted_names_are_parsed() -> None:
    """Unwanted lines are not even looked at, so that they cannot be malformed."""
    page = parse_metrics("noise{ 1\nwanted 2\n", lambda name: name == "wanted")
    assert (page.samples, page.malformed) == ({("wanted", ()): 2.0}, 0)


def series(*readings: float) -> Telemetry:
    """One counter, NaN for a reading without it."""
    telemetry = Telemetry(complete=True)
    for t, value in enumerate(readings):
        telemetry.add(t, {} if math.isnan(value) else {KEY: value})
    return telemetry


def test_rise_of_a_counter() -> None:
    """A counter rises from its first reading, or from 0 if it appeared late."""
    assert series(3, 5, 9).rise("c_total") == 6
    assert series(math.nan, 5, 9).rise("c_total") == 9
    assert series(3, math.nan, 9).rise("c_total") == 6
    assert series(3).rise("other") is None


@pytest.mark.parametrize("readings", [(5, 3), (5, 9, 8), (5, math.nan)])
def test_t29_fallen_or_vanished_counter(readings: tuple[float, ...]) -> None:
    """A counter that falls, or is not there at the end, is an error."""
    with pytest.raises(CounterFell, match="c_total fell or vanished"):
        series(*readings).rise("c_total")


def test_gauge_of_a_page_without_it() -> None:
    """A reading without any of the series is NaN, not 0."""
    telemetry = Telemetry()
    telemetry.add(1, {("g", ()): 2.0})
    telemetry.add(2, {})
    total = telemetry.total("g")
    assert total is not None
    assert total[0] == 2.0
    assert math.isnan(total[1])
    assert telemetry.total("h") is None


def test_unfinished_telemetry_proves_nothing() -> None:
    """Without a reading before and after the load the run cannot be valid."""
    telemetry = series(1, 2)
    telemetry.complete = False
    problems = proof_problems(telemetry, [record([(1, 1)])], None, SGLANG)
    assert problems == ["metrics: /metrics was not read both before and after the load"]


def test_no_metrics_is_a_note() -> None:
    """A server without metrics is not proved, and that is said."""
    empty = Telemetry()
    empty.add_gap(1, "HTTP 404")
    assert proof_problems(empty, [], None, SGLANG) == []
    assert proof_notes(empty) == ["metrics: not checked, /metrics gave nothing (HTTP 404)"]
    assert "no series that this harness knows" in proof_notes(Telemetry())[0]


def test_queue_is_not_judged_by_readings_without_it() -> None:
    """Readings inside the window that lack the gauge are no queue."""
    telemetry = Telemetry(complete=True)
    telemetry.add(0, {("sglang:num_queue_reqs", ()): 0.0})
    telemetry.add(3_000_000_000, {})
    assert proof_problems(telemetry, [], (0, 4_000_000_000), SGLANG) == []


def test_gauge_of_a_slow_engine_may_be_old() -> None:
    """Forty steps of 100 ms are four seconds: a queue seen before that may be the start's."""
    slow = record([(100.0 * step, 1) for step in range(61)])
    for at_s, found in ((3, 0), (5, 1)):
        telemetry = Telemetry(complete=True)
        telemetry.add(0, {("sglang:num_queue_reqs", ()): 0.0})
        telemetry.add(at_s * 1_000_000_000, {("sglang:num_queue_reqs", ()): 2.0})
        problems = proof_problems(telemetry, [slow], (0, 6_000_000_000), SGLANG)
        assert sum("queued inside the window" in problem for problem in problems) == found


def test_maps_name_their_series() -> None:
    """Each kind of server knows its own names; a change must name a meaning and be readable."""
    assert SGLANG.wants()("sglang_spin:miss_mean")
    assert not SGLANG.wants()("sglang:e2e_request_latency_seconds_bucket")
    assert VLLM.wants()("vllm:num_preemptions_total")
    assert unknown_changes({"queued": "mine:queue"}) == []
    assert "unknown meaning" in unknown_changes({"que": "x"})[0]
    assert "not a regular expression" in unknown_changes({"queued": "("})[0]


class FakeNvmlError(Exception):
    """What the binding raises."""


def fake_nvml(devices: int) -> SimpleNamespace:
    """A binding with so many devices, the second of which has no PCIe counters."""

    def pcie(device: int, _: int) -> int:
        if device:
            raise FakeNvmlError
        return 1000

    return SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: devices,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=50 + device),
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=3 << 20),
        nvmlDeviceGetPowerUsage=lambda device: 250_000,
        nvmlDeviceGetClockInfo=lambda device, clock: 1980,
        nvmlDeviceGetTemperature=lambda device, sensor: 60,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda device: 0,
        nvmlDeviceGetPcieThroughput=pcie,
    )


def test_gpus_are_sampled_with_what_they_support(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device gives what it supports, in the units that the names say."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2))

    async def watch() -> Telemetry:
        async with watching_gpus(find_gpus(), period_s=0.01) as telemetry:
            while len(telemetry.t_ns) < 2:
                await asyncio.sleep(0.01)
        return telemetry

    telemetry = asyncio.run(watch())
    assert telemetry.series["gpu:utilization_percent", (("gpu", "1"),)][0] == 51
    assert telemetry.series["gpu:power_w", (("gpu", "0"),)][0] == 250
    assert telemetry.series["gpu:memory_used_mib", (("gpu", "0"),)][0] == 3
    pcie = telemetry.select("gpu:pcie_rx_kib_s")
    assert list(pcie) == [("gpu:pcie_rx_kib_s", (("gpu", "0"),))]


@pytest.mark.parametrize("binding", [None, fake_nvml(0)], ids=["no binding", "no device"])
def test_machine_without_gpus(monkeypatch: pytest.MonkeyPatch, binding: object) -> None:
    """Without binding or device there is no GPU telemetry and no error."""
    monkeypatch.setitem(sys.modules, "pynvml", binding)
    assert find_gpus() is None

    async def watch() -> Telemetry:
        async with watching_gpus(None) as telemetry:
            await asyncio.sleep(0)
        return telemetry

    assert not asyncio.run(watch()).series
