"""What one event of a stream does to the request's record."""

from typing import Any

import orjson
import pytest

from harness.metrics import ttft_ns
from harness.record import RequestRecord
from harness.stream import StreamError, take_event
from tests.harness.helpers import MS


def feed(*events: tuple[float, dict[str, Any] | bytes]) -> RequestRecord:
    """A record after events given as (ms, event)."""
    record = RequestRecord(index=0)
    for t, event in events:
        data = event if isinstance(event, bytes) else orjson.dumps(event)
        take_event(record, data, round(t * MS))
    return record


def token(text: str, total: int) -> dict[str, Any]:
    """A completion chunk with the running total of tokens."""
    return {"choices": [{"text": text}], "usage": {"completion_tokens": total}}


def test_t01_tokens_of_a_chunk_are_the_rise_of_usage() -> None:
    """A chunk counts as many tokens as completion_tokens rose, whatever its text."""
    record = feed((1, token("a", 1)), (2, token("bcd", 4)))
    assert list(record.chunk_tokens) == [1, 3]
    assert record.itl_basis == "usage"


def test_t03_chunk_without_tokens_carries_its_gap_on() -> None:
    """A chunk that raises no count is no sample; the gap runs to the next one that does."""
    record = feed((1, token("a", 1)), (2, token("", 1)), (5, token("b", 2)))
    assert list(record.chunk_t_ns) == [1 * MS, 5 * MS]


@pytest.mark.parametrize(
    "first",
    [
        {"choices": [{"text": ""}]},
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}},
    ],
    ids=["empty", "role", "zero usage"],
)
def test_t04_first_token_is_the_first_chunk_with_tokens(first: dict[str, Any]) -> None:
    """An empty or role-only chunk before the first token is not the first token."""
    assert ttft_ns(feed((1, first), (9, token("a", 1)))) == 9 * MS


@pytest.mark.parametrize("field", ["content", "reasoning_content", "reasoning"])
def test_t05_every_text_field_counts(field: str) -> None:
    """Chat replies and their reasoning are tokens, in whichever field they come."""
    record = feed((3, {"choices": [{"delta": {field: "x"}}]}))
    assert ttft_ns(record) == 3 * MS


def test_t08_without_chunk_usage_the_basis_is_chunks() -> None:
    """Usage only at the end: one token a chunk is assumed and the basis says so."""
    text = {"choices": [{"text": "ab"}]}
    record = feed((1, text), (2, text), (3, {"usage": {"completion_tokens": 7}}))
    assert record.itl_basis == "chunk"
    assert list(record.chunk_tokens) == [1, 1]
    assert record.completion_tokens == 7


def test_t09_error_inside_the_stream() -> None:
    """An error object after HTTP 200 is an error."""
    with pytest.raises(StreamError, match="out of memory"):
        feed((1, {"error": {"message": "out of memory"}}))


def test_t17_cached_tokens_absent_is_not_zero() -> None:
    """Unreported, null and 0 are told apart, and a later null does not erase a number."""
    assert feed((1, {"usage": {"completion_tokens": 1}})).cached_tokens is None
    assert feed((1, {"usage": {"prompt_tokens_details": None}})).cached_tokens is None
    zero = {"usage": {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}}
    assert feed((1, zero), (2, {"usage": {"prompt_tokens_details": None}})).cached_tokens == 0


@pytest.mark.parametrize("data", [b"{half", b"[1]", b"3"], ids=["broken", "list", "number"])
def test_malformed_event(data: bytes) -> None:
    """An event that is not a JSON object is an error."""
    with pytest.raises(StreamError):
        feed((1, data))


def test_t37_falling_count_is_an_error() -> None:
    """completion_tokens that falls (a request started again) is an error, not a negative sample."""
    with pytest.raises(StreamError, match="fell from 5 to 2"):
        feed((1, token("a", 5)), (2, token("b", 2)))


def test_output_ids_are_kept() -> None:
    """Token ids of all chunks are joined, for the comparison of greedy outputs."""
    chunk = {"choices": [{"text": "a", "token_ids": [4, 5]}], "usage": {"completion_tokens": 2}}
    assert list(feed((1, chunk), (2, b"[DONE]")).output_ids) == [4, 5]
