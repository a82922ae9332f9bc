"""One event of a streamed completion or chat reply, put into the request's record."""

from typing import Any

import orjson

from harness.record import RequestRecord

TEXT_FIELDS = ("text", "content", "reasoning_content", "reasoning")


class StreamError(Exception):
    """The stream carries an error or breaks its own format."""


def take_event(record: RequestRecord, data: bytes, received_ns: int) -> None:
    """Add one event. Raises StreamError for an error inside the stream or a malformed event."""
    if data == b"[DONE]":
        record.saw_done = True
        return
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise StreamError(f"event is not JSON: {data[:80]!r}") from None
    if not isinstance(event, dict):
        raise StreamError(f"event is not an object: {data[:80]!r}")
    if event.get("error"):
        raise StreamError(f"error in the stream: {_error_text(event['error'])}")
    text = _take_choices(record, event.get("choices") or [])
    _take_usage(record, event.get("usage") or {}, bool(text), received_ns)


def _error_text(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:200]


def _take_choices(record: RequestRecord, choices: list[dict[str, Any]]) -> str:
    pieces: list[str] = []
    for choice in choices:
        delta = choice.get("delta") or choice
        pieces += [delta[name] for name in TEXT_FIELDS if delta.get(name)]
        record.output_ids.extend(choice.get("token_ids") or ())
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    record.text += pieces
    return "".join(pieces)


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
            _add_chunk(record, 1, received_ns)
        return
    known, record.completion_tokens = record.completion_tokens or 0, total
    if total < known:
        raise StreamError(f"completion_tokens fell from {known} to {total}")
    if record.itl_basis != "chunk" and total > known:
        record.itl_basis = "usage"
        _add_chunk(record, total - known, received_ns)


def _add_chunk(record: RequestRecord, tokens: int, received_ns: int) -> None:
    record.chunk_t_ns.append(received_ns)
    record.chunk_tokens.append(tokens)
