"""What other load generators get wrong about a stream (T1-T11, T19, T24), against the mock."""

import itertools

import numpy as np
import pytest

from harness import metrics
from harness.record import RequestRecord
from tests.harness.helpers import MS
from tests.harness.traps import OUTPUT, problems, streamed, whole_run


def gaps_and_tokens(record: RequestRecord) -> list[tuple[int, int]]:
    """(gap in ns, tokens) of every chunk but the first."""
    gaps = [b - a for a, b in itertools.pairwise(record.chunk_t_ns)]
    return list(zip(gaps, list(record.chunk_tokens)[1:], strict=True))


def test_t01_four_itl_conventions_of_one_stream() -> None:
    """Bundled chunks give four named figures; only the per-token one is the time per token."""
    (record,) = streamed(chunk_tokens="1,2,4", itl_ms=20)
    pairs = gaps_and_tokens(record)
    assert list(record.chunk_tokens) == [1, 2, 4, 1, 2, 2]
    assert metrics.itl_chunk_ns(record).tolist() == [gap for gap, _ in pairs]
    per_token = [gap / n for gap, n in pairs for _ in range(n)]
    assert metrics.itl_token_ns(record).tolist() == pytest.approx(per_token)
    arrival = metrics.itl_arrival_ns(record)
    assert sorted(arrival[arrival > 0]) == sorted(gap for gap, _ in pairs)
    assert len(arrival) == len(per_token) == OUTPUT - 1
    assert metrics.itl_request_mean_ns(record) == pytest.approx(np.mean(per_token))


def test_t02_itl_is_divided_by_the_chunks_own_tokens() -> None:
    """Speculative chunks of 1 and 4 tokens are divided by 1 and 4, never by their average."""
    (record,) = streamed(chunk_tokens="1,4", itl_ms=10)
    samples = iter(metrics.itl_token_ns(record))
    for gap, tokens in gaps_and_tokens(record):
        assert [next(samples) for _ in range(tokens)] == [pytest.approx(gap / tokens)] * tokens
    assert {tokens for _, tokens in gaps_and_tokens(record)} == {1, 4}


def test_t03_chunk_without_tokens_is_no_sample() -> None:
    """A chunk of 0 tokens gives no gap and no division; its time goes to the next with tokens."""
    (record,) = streamed(chunk_tokens="1,0", itl_ms=20)
    assert problems([record]) == ""
    assert list(record.chunk_tokens) == [1] * OUTPUT
    # every second chunk is empty, so the eleven gaps hold 22 steps of 20 ms
    assert sum(gap for gap, _ in gaps_and_tokens(record)) > 15 * 20 * MS


@pytest.mark.parametrize("wire", ["completions", "chat", "generate"])
def test_t04_empty_first_chunk_is_not_the_first_token(wire: str) -> None:
    """An empty or role-only chunk at once is not the first token, which comes after 100 ms."""
    (record,) = streamed(wire=wire, empty_first_chunk=1, ttft_ms=100)
    ttft = metrics.ttft_ns(record)
    assert ttft is not None
    assert ttft >= 100 * MS > record.first_byte_ns - record.sent_ns
    assert problems([record]) == ""


@pytest.mark.parametrize("text_field", ["content", "reasoning_content", "reasoning"])
def test_t05_reasoning_is_output(text_field: str) -> None:
    """A chat reply counts in whichever field its text comes, also when usage comes only last."""
    (record,) = streamed(wire="chat", text_field=text_field, usage="final")
    assert record.streamed_tokens == record.completion_tokens == OUTPUT
    assert "".join(record.text) == " t" * OUTPUT


def test_t06_nothing_received_is_null_and_invalid() -> None:
    """A reply without a token has no TTFT and no ITL, never 0, and is a failed request."""
    (record,) = streamed(output=1, fault="short", fault_min_tokens=1)
    assert record.saw_done
    assert metrics.ttft_ns(record) is None
    assert metrics.itl_request_mean_ns(record) is None
    assert metrics.percentile(metrics.itl_token_ns(record), 50) is None
    assert "no token was seen to arrive" in problems([record])


def test_t07_bundle_in_the_first_chunk() -> None:
    """Tokens of the first chunk are not divided into the time after it."""
    (record,) = streamed(chunk_tokens="8,1,1,1,1")
    span = record.chunk_t_ns[-1] - record.chunk_t_ns[0]
    assert metrics.itl_request_mean_ns(record) == span / (OUTPUT - 8)


@pytest.mark.parametrize(("usage", "basis"), [("continuous", "usage"), ("final", "chunk")])
def test_t08_basis_of_the_token_count_is_noted(usage: str, basis: str) -> None:
    """Without usage in every chunk the record says that chunks were counted."""
    (record,) = streamed(usage=usage, chunk_tokens="3")
    assert record.itl_basis == basis
    assert list(record.chunk_tokens) == ([3, 3, 3, 3] if basis == "usage" else [1, 1, 1, 1])
    assert record.completion_tokens == OUTPUT


@pytest.mark.parametrize("wire", ["completions", "chat", "generate"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("in-band-error", "error in the stream: scripted"),
        ("garbage", "not JSON"),
        ("restart", "completion_tokens fell from 6 to 1"),
    ],
)
def test_t09_error_after_http_200(wire: str, fault: str, words: str) -> None:
    """An error, a broken event and a count that falls fail the request in every format."""
    assert words in problems(streamed(wire=wire, fault=fault))


@pytest.mark.parametrize("wire", ["completions", "generate"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("eof", "finish_reason None"),
        ("no-done", "without [DONE]"),
        ("drop", "failed: 1 of 1"),
        ("abort", "finish_reason 'abort'"),
    ],
)
def test_t10_truncated_stream(wire: str, fault: str, words: str) -> None:
    """A stream that ends early, whether cleanly, broken or aborted, is no success."""
    assert words in problems(streamed(wire=wire, fault=fault))


def test_t10_one_truncated_stream_of_many_spoils_the_run() -> None:
    """Every other stream breaks off: the run is invalid and says how many and which first."""
    run = whole_run(fault="eof", fault_every=2)
    assert any("failed: 1 of 2 requests" in problem for problem in run.problems)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("early-stop", "finish_reason 'stop'"), ("short", f"6, expected {OUTPUT}")],
)
def test_t11_early_stop_despite_ignore_eos(fault: str, words: str) -> None:
    """Fewer tokens than asked for are a problem, also when the server calls it the full length."""
    assert words in problems(streamed(fault=fault))


def test_t19_two_megabyte_lines() -> None:
    """Lines beyond any client's limit arrive whole, in reads of their own size."""
    (record,) = streamed(pad_bytes=2_000_000)
    assert problems([record]) == ""


@pytest.mark.parametrize("line_end", ["lf", "crlf", "cr"])
def test_t19_line_cut_at_every_byte(line_end: str) -> None:
    """Events that arrive byte by byte, between comments, with any line end, are the same events."""
    (record,) = streamed(split_bytes=1, line_end=line_end, comments=1)
    assert problems([record]) == ""
    assert list(record.chunk_tokens) == [1] * OUTPUT


def test_t24_reply_in_one_piece() -> None:
    """A reply that something buffered has no rate: the run is invalid, not very fast."""
    run = whole_run(fault="buffered", spec={"limits": {"instant_gap_share": 0.5}})
    assert any("implausible: 100% of the chunks came at once" in text for text in run.problems)


def test_cumulative_generate_is_refused() -> None:
    """SGLang's default of repeating the whole output is refused with the option that ends it."""
    assert "--incremental-streaming-output" in problems(streamed(wire="generate", cumulative=1))
