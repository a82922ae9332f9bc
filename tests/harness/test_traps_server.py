"""What a server's own account must prove about a load (T22, T27-T29, T37), against the mock."""

import asyncio
import math
import re
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import ClientSession

from harness import scrape
from harness.metric_map import SGLANG, VLLM
from harness.mock_script import MockScript, MockState
from harness.scrape import scraping
from harness.telemetry import Telemetry
from tests.harness.helpers import with_mock
from tests.harness.traps import bodies, stream_all, whole_run


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_counters_prove_a_sound_run(dialect: str) -> None:
    """The rise of the server's counters over the load is the sum of what its replies say."""
    run = whole_run(dialect=dialect)
    metrics = {"sglang": SGLANG, "vllm": VLLM}[dialect]
    assert run.problems == []
    assert run.telemetry.complete
    assert run.telemetry.rise(metrics.prompt_tokens) == sum(r.prompt_tokens for r in run.records)
    assert run.telemetry.rise(metrics.output_tokens) == 2 * 12
    assert run.telemetry.rise(metrics.cached_tokens) == 2 * 256


@pytest.mark.parametrize("metrics", ["off", "error", "garbage"])
def test_t28_server_without_usable_metrics(metrics: str) -> None:
    """A page that is absent, an error or no metrics leaves the run valid and says what was not."""
    run = whole_run(metrics=metrics)
    assert run.problems == []
    assert run.telemetry.gaps
    assert not run.telemetry.series


def test_t28_hanging_page_does_not_hold_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that never answers costs its own time-out and becomes a gap."""
    monkeypatch.setattr(scrape, "TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    run = whole_run(metrics="hang")
    assert run.problems == []
    assert {gap.why for gap in run.telemetry.gaps} == {"TimeoutError"}


def test_t28_series_that_appears_late() -> None:
    """A counter that the server makes when it first counts rises from 0 and is no error before."""

    async def use(session: ClientSession, _: MockState) -> Telemetry:
        async with scraping(session, SGLANG, 0.02) as scraped:
            await stream_all(session, bodies(1))
            await stream_all(session, bodies(1))
        return scraped

    telemetry = asyncio.run(with_mock(MockScript(page_size=64), use))
    (values,) = telemetry.select(SGLANG.cached_tokens).values()
    assert math.isnan(values[0])
    assert telemetry.rise(SGLANG.cached_tokens) == values[-1] == 64


def test_t29_counters_that_fall() -> None:
    """Counters that fall in the load mean another server process: the run is invalid."""
    # priming, verification and two warm-up rounds of two requests come before the load
    run = whole_run(metrics_reset_after=8, spec={"warmup": {"min_rounds": 2, "max_rounds": 2}})
    assert any("fell or vanished during the load" in problem for problem in run.problems)


def test_t29_counters_of_all_ranks_are_summed() -> None:
    """Series of several ranks add up; a breakdown by priority is not added to its total."""
    telemetry = Telemetry()
    for t, (one, two) in enumerate([(5.0, 7.0), (8.0, 17.0)]):
        telemetry.add(
            t,
            {
                ("c_total", (("dp_rank", "0"),)): one,
                ("c_total", (("dp_rank", "1"),)): two,
                ("queue", (("priority", ""),)): 3.0,
                ("queue", (("priority", "1"),)): 3.0,
            },
        )
    assert telemetry.rise("c_total") == 3 + 10
    assert telemetry.total("queue").tolist() == [3.0, 3.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_t37_requests_begun_again_invalidate(dialect: str) -> None:
    """A request that the server threw out and began again in the load makes the run invalid."""
    run = whole_run(dialect=dialect, retract=1)
    assert any("2 requests were thrown out" in problem for problem in run.problems)


def test_t37_evictions_invalidate() -> None:
    """Cached tokens that were evicted in the load make the run invalid."""
    run = whole_run(evict=64)
    assert any("128 cached tokens were evicted" in problem for problem in run.problems)


def test_t37_counts_that_disagree_invalidate() -> None:
    """A server whose counter says more than its replies is not believed."""
    run = whole_run(miscount=3)
    assert run.problems == ["metrics: the server counted 30 output tokens, its replies say 24"]


def test_queue_inside_the_window_invalidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait while others decode make the run invalid, once the gauge is fresh."""
    monkeypatch.setattr("harness.scrape.PERIOD_S", 0.02)
    spec = {"workload": {"output_tokens": 30}}
    run = whole_run(queued=3, itl_ms=20, spec=spec)
    assert run.problems == []
    fresh = replace(SGLANG, gauge_delay_s=0.0, gauge_delay_steps=0)
    monkeypatch.setattr("harness.metric_map.METRIC_MAPS", {"sglang": fresh})
    run = whole_run(queued=3, itl_ms=20, spec=spec)
    assert run.problems == ["metrics: up to 6 requests were queued inside the window"]
    # a window that holds the start burst holds its queue, too
    whole = {"workload": {"output_tokens": 30}, "window": "full_run"}
    assert whole_run(queued=3, itl_ms=20, spec=whole).problems == []


def test_series_of_the_plugin_are_kept_by_layer() -> None:
    """What /metrics offers under the plugin's prefix is kept per layer, on ITL's clock."""
    run = whole_run("spin", spin_target=0.4)
    assert run.problems == []
    kept = run.telemetry.select("sglang_spin:kept_share")
    assert [dict(labels)["layer"] for _, labels in kept] == ["0", "1", "2", "3"]
    begin, end = run.telemetry.t_ns[0], run.telemetry.t_ns[-1]
    assert begin < min(record.sent_ns for record in run.records)
    assert end > max(record.chunk_t_ns[-1] for record in run.records)


def test_metrics_are_renamed_by_the_spec() -> None:
    """A spec may say which series means what; one that is not there is named, not ignored."""
    run = whole_run(spec={"metrics": {"output_tokens": "other:tokens_total"}})
    assert run.problems == [
        "metrics: other:tokens_total is not on /metrics, so output tokens cannot be checked"
    ]


def test_every_trap_has_a_test() -> None:
    """T1 to T37 each stand in the name of a test."""
    names = [
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    covered = {int(number) for name in names for number in re.findall(r"_t(\d\d)(?=_)", name)}
    assert covered == set(range(1, 38))
