"""One event of SGLang's native `/generate` stream, put into the request's record."""

from harness.record import RequestRecord
from harness.stream import DONE, StreamError, add_chunk, decode_event, take_total


def take_generate_event(record: RequestRecord, data: bytes, received_ns: int) -> None:
    """Add one event.

    Raises StreamError for an error inside the stream, a malformed event, and for a server that
    sends the whole output again with every token: at 16K tokens that is half a gigabyte a request,
    and the client would be what is measured.
    """
    if data == DONE:
        record.saw_done = True
        return
    event = decode_event(data)
    meta = event.get("meta_info") or {}
    for name in ("prompt_tokens", "cached_tokens"):
        if meta.get(name) is not None:
            setattr(record, name, meta[name])
    reason = meta.get("finish_reason")
    record.finish_reason = (
        reason.get("type") if isinstance(reason, dict) else reason
    ) or record.finish_reason
    if event.get("text"):
        record.text.append(event["text"])
    if meta.get("completion_tokens") is None:
        raise StreamError("event has no meta_info.completion_tokens")
    rise = take_total(record, meta["completion_tokens"])
    ids = event.get("output_ids") or ()
    if len(ids) > rise > 0:
        raise StreamError(
            f"{len(ids)} ids for {rise} new tokens: the server repeats its whole output, "
            "start it with --incremental-streaming-output"
        )
    if rise:
        record.itl_basis = "usage"
        record.output_ids.extend(ids)
        add_chunk(record, rise, received_ns)
