"""One event of a streamed completion or chat reply, put into the request's record."""

from typing import Any

import orjson

from harness.record import RequestRecord

TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning")
DONE = b"[DONE]"


class StreamError(Exception):
    """The stream carries an error or breaks its own format."""


def take_event(record: RequestRecord, data: bytes, received_ns: int) -> None:
    """Add one event. Raises StreamError for an error inside the stream or a malformed event."""
    if data == DONE:
        record.saw_done = True
        return
    event = decode_event(data)
    has_text = _take_choices(record, event.get("choices") or [])
    _take_usage(record, event.get("usage") or {}, has_text, received_ns)


def decode_event(data: bytes) -> dict[str, Any]:
    """The event as an object. Raises StreamError if it is none, or if it reports an error."""
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise StreamError(f"event is not JSON: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise StreamError(f"event is not an object: {data[:80]!r}")
    if event.get("error"):
        raise StreamError(f"error in the stream: {_error_text(event['error'])}")
    return event


def _error_text(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:200]


def _take_choices(record: RequestRecord, choices: list[dict[str, Any]]) -> bool:
    """Add texts, ids and the finish reason; say whether there was any text."""
    known = len(record.text)
    for choice in choices:
        delta = choice.get("delta") or choice
        for name in TEXT_FIELDS:
            if text := delta.get(name):
                record.text.append(text)
        if ids := choice.get("token_ids"):
            record.output_ids.extend(ids)
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    return len(record.text) > known


def _take_usage(
    record: RequestRecord, usage: dict[str, Any], has_text: bool, received_ns: int
) -> None:
    """Book the chunk's tokens: the rise of completion_tokens, or one when usage comes only last."""
    total = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details") or {}
    if usage.get("prompt_tokens") is not None:
        record.prompt_tokens = usage["prompt_tokens"]
    if details.get("cached_tokens") is not None:
        record.cached_tokens = details["cached_tokens"]
    if total is None:
        if has_text:
            record.itl_basis = "chunk"
            add_chunk(record, 1, received_ns)
        return
    rise = take_total(record, total)
    if record.itl_basis != "chunk" and rise:
        record.itl_basis = "usage"
        add_chunk(record, rise, received_ns)


def take_total(record: RequestRecord, total: int) -> int:
    """Keep the running total of output tokens and return its rise. Raises StreamError if it fell.

    A total that falls means that the server began the request again.
    """
    known, record.completion_tokens = record.completion_tokens or 0, total
    if total < known:
        raise StreamError(f"completion_tokens fell from {known} to {total}")
    return total - known


def add_chunk(record: RequestRecord, tokens: int, received_ns: int) -> None:
    """Note a token-bearing chunk."""
    record.chunk_t_ns.append(received_ns)
    record.chunk_tokens.append(tokens)
