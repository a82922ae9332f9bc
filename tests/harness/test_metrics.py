"""Each metric against numbers worked out by hand."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import metrics
from harness.record import RequestRecord
from harness.runrecord import windows
from harness.timeline import itl_over_time, timeline
from tests.harness.helpers import MS, record

# 1 token at 10 ms, then 3 at 40 ms, then 2 at 60 ms; sent at 2 ms
SCRIPT = [(10, 1), (40, 3), (60, 2)]


def test_t01_the_four_itl_conventions() -> None:
    """One stream, four named definitions, none of them equal."""
    r = record(SCRIPT)
    assert metrics.itl_chunk_ns(r).tolist() == [30 * MS, 20 * MS]
    assert metrics.itl_token_ns(r).tolist() == [10 * MS] * 3 + [10 * MS] * 2
    assert metrics.itl_arrival_ns(r).tolist() == [30 * MS, 0, 0, 20 * MS, 0]
    assert metrics.itl_request_mean_ns(r) == 50 * MS / 5


chunk_lists = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=2, max_size=30
).map(
    lambda steps: [(float(sum(t for t, _ in steps[: i + 1])), n) for i, (_, n) in enumerate(steps)]
)


@given(chunk_lists)
def test_t02_mean_itl_is_time_over_own_tokens(chunks: list[tuple[float, int]]) -> None:
    """The mean per-token ITL is (last - first) / (N - n_first): no server average enters."""
    r = record(chunks)
    expected = metrics.itl_request_mean_ns(r)
    assert metrics.itl_token_ns(r).mean() == pytest.approx(expected, rel=1e-12)
    assert metrics.itl_arrival_ns(r).mean() == pytest.approx(expected, rel=1e-12)


def test_t06_nothing_received_is_none() -> None:
    """Without tokens every figure is None or empty, never 0."""
    empty = RequestRecord(index=0)
    assert metrics.ttft_ns(empty) is None
    assert metrics.e2e_ns(empty) is None
    assert metrics.itl_request_mean_ns(empty) is None
    assert metrics.percentile(metrics.itl_token_ns(empty), 50) is None
    assert windows([empty], 1) == {"full_batch": None, "occupancy_95": None, "full_run": None}


def test_t07_first_chunk_does_not_inflate_the_rate() -> None:
    """A first chunk of n tokens is taken out of the divisor; one chunk alone has no ITL."""
    assert metrics.itl_request_mean_ns(record([(10, 5), (20, 1), (30, 1)])) == 10 * MS
    assert metrics.itl_request_mean_ns(record([(10, 5)])) is None


def test_t24_buffered_reply_is_seen() -> None:
    """Chunks that all came with one read have gaps of nothing."""
    buffered = record([(50, 1)] * 10)
    assert metrics.instant_gap_share([buffered]) == 1
    assert metrics.instant_gap_share([record(SCRIPT)]) == 0


def test_t30_full_batch_window_leaves_burst_and_drain_out() -> None:
    """The window runs from the last first-token to the first finish, and only its tokens count."""
    early = record([(10, 1), (20, 1), (30, 1), (40, 1)])
    late = record([(20, 1), (30, 1), (40, 1), (50, 1), (60, 1)])
    named = windows([early, late], 2)
    assert named["full_batch"] == (20 * MS, 40 * MS)
    assert named["full_run"] == (0, 60 * MS)
    assert metrics.output_tok_s([early, late], (20 * MS, 40 * MS)) == pytest.approx(4 / 0.020)
    assert metrics.itl_token_ns(late, (20 * MS, 40 * MS)).tolist() == [10 * MS] * 2


def test_occupancy_window_takes_the_longest_stretch() -> None:
    """With several waves the longest stretch at the wanted occupancy is taken."""
    wave = [record([(0, 1), (10, 1)]), record([(0, 1), (12, 1)]), record([(11, 1), (40, 1)])]
    wave.append(record([(13, 1), (39, 1)]))
    assert metrics.occupancy_window(wave, 2) == (13 * MS, 39 * MS)
    assert metrics.occupancy_window(wave, 5) is None


def test_output_rate_of_an_empty_window() -> None:
    """A window without length has no rate."""
    assert metrics.output_tok_s([record(SCRIPT)], (5, 5)) is None


def test_t25_time_held_back_by_the_client_is_kept() -> None:
    """The wait between due and sent is its own figure and not hidden in TTFT."""
    r = record(SCRIPT, scheduled_ns=1 * MS, sent_ns=4 * MS)
    assert metrics.queue_ns(r) == 3 * MS
    assert metrics.ttft_ns(r) == 6 * MS


def test_t36_send_spread_is_of_the_first_wave() -> None:
    """The spread covers the first wave's starts, not later refills."""
    records = [record(SCRIPT, sent_ns=t) for t in (5, 9, 7, 900)]
    assert metrics.send_spread_ns(records, 3) == 4


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200), st.floats(0, 100))
def test_percentile_lies_within_its_samples(values: list[float], q: float) -> None:
    """A percentile is between the smallest and the largest sample."""
    found = metrics.percentile(np.array(values), q)
    assert found is not None
    assert min(values) <= found <= max(values)


def test_record_arrays_hold_nanoseconds() -> None:
    """Times past 2**32 ns are kept exactly."""
    r = RequestRecord(index=0, chunk_t_ns=array("q", [2**62]))
    assert r.chunk_t_ns[0] == 2**62


def test_tpot_divides_by_all_tokens_but_one() -> None:
    """(60 - 10) ms over 5 later tokens; with a first chunk of 2 it differs from the mean ITL."""
    assert metrics.tpot_ns(record(SCRIPT)) == 10 * MS
    bundled = record([(10, 2), (40, 3)])
    assert metrics.tpot_ns(bundled) == 30 * MS / 4
    assert metrics.itl_request_mean_ns(bundled) == 10 * MS
    assert metrics.tpot_ns(record([(10, 1)])) is None


def test_tokens_per_chunk_leaves_the_first_out() -> None:
    """Chunks of 3 and 2 after the first give 2.5."""
    assert metrics.tokens_per_chunk(record(SCRIPT)) == 2.5
    assert metrics.tokens_per_chunk(record([(10, 4)])) is None


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([1, 2, 3, 4, 5], 1.0), ([7] * 9, 1 / 6), ([1, 2] * 4, 2 / 5), ([1, 2, 3], None)],
)
def test_repetition_ratio(ids: list[int], expected: float | None) -> None:
    """Distinct 4-grams over all; a constant answer has one of n - 3."""
    assert metrics.repetition_ratio(ids) == expected


def test_itl_by_position_by_hand() -> None:
    """Token 0 has no gap; 1 to 3 share 10 ms each, 4 and 5 share 10 ms, another answer 20 ms."""
    other = record([(0, 1), (20, 1), (40, 1), (60, 1), (80, 1), (100, 1)])
    bins = metrics.itl_by_position([record(SCRIPT), other], [0, 1, 4, 6, 9])
    assert [one["p50_ns"] for one in bins] == [None, 15 * MS, 15 * MS, None]
    assert [(one["from"], one["to"]) for one in bins] == [(0, 1), (1, 4), (4, 6), (6, 9)]


@given(chunk_lists)
def test_every_later_token_has_a_position(chunks: list[tuple[float, int]]) -> None:
    """One bin over all positions holds every token but the first chunk's."""
    r = record(chunks)
    (whole,) = metrics.itl_by_position([r], [0, r.streamed_tokens])
    assert whole["p50_ns"] == metrics.percentile(metrics.itl_token_ns(r), 50)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, True),
        ({"ttft_ms": 8}, True),
        ({"ttft_ms": 7}, False),
        ({"itl_ms": 10}, True),
        ({"itl_ms": 9}, False),
        ({"e2e_ms": 58, "ttft_ms": 8, "itl_ms": 10}, True),
        ({"e2e_ms": 57, "ttft_ms": 8, "itl_ms": 10}, False),
    ],
)
def test_slo_needs_every_limit(limits: dict[str, float], good: bool) -> None:
    """TTFT 8 ms, mean ITL 10 ms, E2E 58 ms: equal to a limit keeps it, above does not."""
    sent = {"scheduled_ns": 2 * MS, "sent_ns": 2 * MS}
    assert metrics.meets_slo(record(SCRIPT, **sent), **limits) is good


def test_t25_slo_counts_from_when_a_request_was_due() -> None:
    """A client that held a request back for 5 ms does not meet what it would have met."""
    held = record(SCRIPT, scheduled_ns=0, sent_ns=5 * MS)
    assert not metrics.meets_slo(held, ttft_ms=8)
    assert metrics.meets_slo(held, ttft_ms=10)


def test_failed_request_is_no_goodput() -> None:
    """An error or a missing [DONE] is never good; the rate is over the full run."""
    assert not metrics.meets_slo(record(SCRIPT, error="x"))
    assert not metrics.meets_slo(record(SCRIPT, saw_done=False))
    assert metrics.goodput_req_s(3, (0, 2_000_000_000)) == 1.5
    assert metrics.goodput_req_s(3, (5, 5)) is None


def test_itl_over_time_by_hand() -> None:
    """Each bin has the median gap of the tokens that arrived in it; a bin without any has none."""
    r = record([(0, 1), (10, 1), (30, 2), (100, 1)])
    seconds, gaps_ns = itl_over_time([r], (0, 100 * MS), bin_s=1)
    assert len(seconds) == len(gaps_ns) == 24
    # bins of 100 / 24 ms: 10 ms is in the third, 30 ms in the eighth, 100 ms in the last
    assert [gaps_ns[2], gaps_ns[7], gaps_ns[23]] == [10 * MS, 10 * MS, 70 * MS]
    assert sum(not math.isnan(gap) for gap in gaps_ns) == 3
    assert seconds[0] == pytest.approx(0.1 / 48)


def test_timeline_by_hand() -> None:
    """Tokens fall into the bin they came in; a request runs from its first to its last token."""
    r = record([(1000, 2), (2000, 6)], sent_ns=0)
    line = timeline([r])
    assert line is not None
    width = 2 / len(line.seconds)
    assert sum(line.tok_s) * width == pytest.approx(8)
    assert sum(line.running) * width == pytest.approx(1)
    assert line.running[0] == 0
    assert line.running[-1] == pytest.approx(1)
    assert timeline([RequestRecord(index=0)]) is None
