"""What makes other load generators measure another workload than they say (T12-T17, T32)."""

import asyncio
from pathlib import Path

import pyarrow.parquet
import pytest

from harness.campaign import Campaign
from harness.mock_script import MockState
from harness.prompts import context_ids
from harness.table import requests_parquet
from tests.harness.helpers import make_spec
from tests.harness.traps import OUTPUT, problems, streamed, whole_run


def test_t12_prompt_length_is_exact_in_every_format() -> None:
    """Token ids arrive as many as were sent; a server that sees another number is named."""
    for wire in ("completions", "chat", "generate"):
        (record,) = streamed(wire=wire)
        assert record.prompt_tokens == 100
        record.prompt_tokens = 101
        assert "prompt_tokens: 1 of 1 requests" in problems([record])


@pytest.mark.parametrize("flush", ["lies", "refuses"])
def test_t13_t15_cache_that_was_not_emptied(flush: str) -> None:
    """A flush that fails ends the run; one that only says done is caught by what is cached."""

    async def fill(state: MockState) -> None:
        # the measured context is in the cache before the run primes it
        state.match_and_insert(context)

    context = context_ids(make_spec(), 0, 0).tolist()
    run = whole_run(flush=flush, meanwhile=fill, spec={"limits": {"flush_s": 1}})
    assert run.records == []
    (problem,) = run.problems
    assert ("192, expected 0" if flush == "lies" else "HTTP 400 Flush cache failed") in problem


def test_t14_every_stored_row_says_its_cache_state(tmp_path: Path) -> None:
    """The stored requests of a real run say that it was flushed and primed, and what was cached."""
    run = whole_run()
    (tmp_path / "requests.parquet").write_bytes(requests_parquet([run]))
    rows = pyarrow.parquet.read_table(tmp_path / "requests.parquet").to_pylist()
    assert len(rows) == 2
    for row in rows:
        assert (row["flushed"], row["primed"], row["cached_tokens"]) == (True, True, 256)


def test_t16_no_request_finds_more_than_the_others() -> None:
    """The warm-up primes nothing of the first measured request: all find the same."""
    run = whole_run(page_size=16)
    assert run.problems == []
    assert {record.cached_tokens for record in run.records} == {256}


@pytest.mark.parametrize("wire", ["completions", "chat", "generate"])
@pytest.mark.parametrize(
    ("script", "count", "words"),
    [
        ({"cached": "absent"}, None, "unverifiable"),
        ({"cached": "radix"}, 0, ""),
        ({"cached": "64"}, 64, "cached_tokens: 1 of 1 requests"),
    ],
    ids=["absent", "zero", "wrong"],
)
def test_t17_cached_tokens_absent_zero_and_wrong(
    wire: str, script: dict[str, str], count: int | None, words: str
) -> None:
    """Absent is not 0 in any format: it is unverifiable, and a wrong number is wrong."""
    (record,) = streamed(wire=wire, **script)
    assert record.cached_tokens == count
    assert words in problems([record])
    assert bool(problems([record])) == bool(words)


def test_t17_unreported_cache_state_ends_the_run_before_its_load() -> None:
    """A server that reports no cached tokens is not loaded at all."""
    run = whole_run(cached="absent")
    assert run.records == []
    assert "start the server with --enable-cache-report" in run.problems[0]


def test_t31_missing_and_invalid_runs_give_no_verdict() -> None:
    """A campaign with an invalid run, or without all its runs, is not valid."""
    spec = make_spec(pairs=1)
    broken = Campaign(spec)
    broken.runs.append(whole_run(fault="no-done"))
    assert any("without [DONE]" in reason for reason in broken.invalid_reasons())
    half = Campaign(spec)
    half.runs.append(whole_run())
    assert any("1 of 2 runs" in reason for reason in half.invalid_reasons())


def test_t08_arms_with_different_bases_are_refused() -> None:
    """A campaign whose arms were counted by tokens and by chunks is not valid."""
    campaign = Campaign(make_spec(pairs=1))
    campaign.runs.append(whole_run())
    campaign.runs.append(whole_run("spin", usage="final", spin_target=0.4))
    assert [bool(run.problems) for run in campaign.runs] == [False, False]
    (reason,) = campaign.invalid_reasons()
    assert reason.startswith("itl_basis: the arms count tokens differently")


def test_t32_cold_server_is_warmed_until_steady() -> None:
    """A server that is eight times slower at first gets more rounds, until two of them agree."""
    run = whole_run(
        cold_requests=2,
        cold_factor=8.0,
        itl_ms=6,
        spec={"warmup": {"output_tokens": 8, "max_rounds": 8, "tolerance": 0.3}},
    )
    assert len(run.warm_tok_s) >= 3
    assert run.warm_tok_s[0] < run.warm_tok_s[-1] / 2


def test_t34_long_prompts_pass_the_whole_run() -> None:
    """A context of 300,000 tokens, two megabytes a body, is primed, verified and loaded."""
    spec = {"workload": {"cached_tokens": 300_000}, "window": "full_run"}
    run = whole_run(spec=spec, page_size=4096)
    assert run.problems == []
    assert {record.prompt_tokens for record in run.records} == {300_032}
    assert {record.completion_tokens for record in run.records} == {OUTPUT}


def test_nothing_is_sent_twice() -> None:
    """A refused request is a failure of the run, never repeated behind its back."""
    seen: list[int] = []

    async def watch(state: MockState) -> None:
        while True:
            seen.append(state.long_seen)
            await asyncio.sleep(0.01)

    run = whole_run(fault="http-503-once", meanwhile=watch)
    assert any("HTTP 503" in problem for problem in run.problems)
    assert max(seen) <= len(run.records) == 2
