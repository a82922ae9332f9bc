"""The metrics, one pure function each. Nanoseconds inside; units change only when written out.

Let r be a request with token-bearing chunks i = 1..m, received at t_i with n_i tokens; N = sum n_i.
A window (start, end] counts what happens after `start` and up to `end`.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.record import RequestRecord

Samples = NDArray[np.float64]
Window = tuple[int, int]
NS_PER_MS = 1e6
NS_PER_S = 1e9


def ttft_ns(record: RequestRecord) -> int | None:
    """Time to first token = t_1 - sent. None when no token came, never 0."""
    return record.chunk_t_ns[0] - record.sent_ns if record.chunk_t_ns else None


def e2e_ns(record: RequestRecord) -> int | None:
    """Latency of the whole answer = t_m - sent. None when no token came."""
    return record.chunk_t_ns[-1] - record.sent_ns if record.chunk_t_ns else None


def itl_chunk_ns(record: RequestRecord, window: Window | None = None) -> Samples:
    """Gap between chunks: t_i - t_{i-1}, i = 2..m, whatever a chunk holds. (vLLM's client)"""
    gaps, _ = _gaps(record, window)
    return gaps


def itl_token_ns(record: RequestRecord, window: Window | None = None) -> Samples:
    """Gap per token: (t_i - t_{i-1}) / n_i, n_i times, i = 2..m. (SGLang's client; we compare this)

    Its mean over the whole request is (t_m - t_1) / (N - n_1).
    """
    gaps, tokens = _gaps(record, window)
    return np.repeat(gaps / tokens, tokens)


def itl_arrival_ns(record: RequestRecord, window: Window | None = None) -> Samples:
    """Gap as received: t_i - t_{i-1}, then n_i - 1 zeros, i = 2..m. (inference-perf)"""
    gaps, tokens = _gaps(record, window)
    spread = np.zeros(int(tokens.sum()))
    if len(tokens):
        spread[np.concatenate([[0], np.cumsum(tokens)[:-1]])] = gaps
    return spread


def itl_request_mean_ns(record: RequestRecord) -> float | None:
    """One value per request: (t_m - t_1) / (N - n_1). (AIPerf, GuideLLM)

    None when all tokens came in one chunk: there is no gap to speak of.
    """
    later = record.streamed_tokens - (record.chunk_tokens[0] if record.chunk_tokens else 0)
    return (record.chunk_t_ns[-1] - record.chunk_t_ns[0]) / later if later else None


def tpot_ns(record: RequestRecord) -> float | None:
    """Time per output token = (t_m - t_1) / (N - 1). (vLLM, SGLang)

    Equal to the request's mean ITL when the first chunk holds one token. None below two tokens.
    """
    later = record.streamed_tokens - 1
    if not record.chunk_t_ns or later < 1:
        return None
    return (record.chunk_t_ns[-1] - record.chunk_t_ns[0]) / later


def _gaps(record: RequestRecord, window: Window | None) -> tuple[Samples, NDArray[np.int64]]:
    """Gaps that lie wholly inside the window, and the tokens of the chunk that ends each."""
    times = np.array(record.chunk_t_ns, dtype=np.int64)
    tokens = np.array(record.chunk_tokens, dtype=np.int64)[1:]
    gaps = np.diff(times).astype(np.float64)
    if window is None:
        return gaps, tokens
    inside = (times[:-1] >= window[0]) & (times[1:] <= window[1])
    return gaps[inside], tokens[inside]


def full_run_window(records: Sequence[RequestRecord]) -> Window | None:
    """From the first request sent to the last token received. None when no token came."""
    ends = [record.chunk_t_ns[-1] for record in records if record.chunk_t_ns]
    return (min(record.sent_ns for record in records), max(ends)) if ends else None


def occupancy_window(records: Sequence[RequestRecord], at_least: int) -> Window | None:
    """Longest stretch in which at least `at_least` requests are between first and last token.

    With one wave and at_least = all of them it runs from the last first-token to the first finish:
    the full batch, without the start burst and the drain.
    """
    edges = sorted(
        edge
        for record in records
        if record.chunk_t_ns
        for edge in ((record.chunk_t_ns[0], 1), (record.chunk_t_ns[-1], -1))
    )
    running, opened = 0, None
    best: Window | None = None
    for time, step in edges:
        running += step
        if running >= at_least:
            opened = time if opened is None else opened
        elif opened is not None:
            if time > opened and (best is None or time - opened > best[1] - best[0]):
                best = (opened, time)
            opened = None
    return best


def output_tok_s(records: Sequence[RequestRecord], window: Window) -> float | None:
    """Tokens received inside the window, per second of it. None for an empty window."""
    start, end = window
    if end <= start:
        return None
    tokens = sum(
        int(np.array(record.chunk_tokens)[_inside(record, window)].sum()) for record in records
    )
    return tokens / (end - start) * NS_PER_S


def _inside(record: RequestRecord, window: Window) -> NDArray[np.bool_]:
    times = np.array(record.chunk_t_ns, dtype=np.int64)
    return (times > window[0]) & (times <= window[1])


def tokens_per_chunk(record: RequestRecord) -> float | None:
    """Mean n_i, i = 2..m. The accept length of speculation, if the server sends one chunk a step.

    None with fewer than two chunks.
    """
    later = record.chunk_tokens[1:]
    return sum(later) / len(later) if later else None


def repetition_ratio(ids: Sequence[int], n: int = 4) -> float | None:
    """Distinct n-grams over all n-grams of one answer; 1 never repeats. None if shorter than n."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def meets_slo(
    record: RequestRecord,
    ttft_ms: float | None = None,
    itl_ms: float | None = None,
    e2e_ms: float | None = None,
) -> bool:
    """Did the request end as asked and keep every limit given? ITL is its mean (itl_request_mean).

    Latencies count from when it was due, so that a client that holds requests back gains nothing.
    """
    if record.error is not None or not record.saw_done:
        return False
    held = queue_ns(record)
    found = [
        (ttft_ns(record), held, ttft_ms),
        (itl_request_mean_ns(record), 0, itl_ms),
        (e2e_ns(record), held, e2e_ms),
    ]
    return all(
        limit is None or (value is not None and value + extra <= limit * NS_PER_MS)
        for value, extra, limit in found
    )


def goodput_req_s(good: int, window: Window) -> float | None:
    """Requests that met their SLO per second of the full run. None for an empty window."""
    return good / (window[1] - window[0]) * NS_PER_S if window[1] > window[0] else None


def itl_by_position(
    records: Sequence[RequestRecord], edges: Sequence[int]
) -> list[dict[str, float | int | None]]:
    """Median per-token ITL, ns, of the output positions in [edges[k], edges[k + 1]), from 0.

    A chunk's tokens share its gap and stand at the positions after those of the chunks before it;
    the first chunk has no gap.
    """
    gaps, positions = [np.empty(0)], [np.empty(0, np.int64)]
    for record in records:
        own = itl_token_ns(record)
        if len(own):
            gaps.append(own)
            positions.append(np.arange(len(own)) + record.chunk_tokens[0])
    every_gap, place = np.concatenate(gaps), np.concatenate(positions)
    bins: list[dict[str, float | int | None]] = []
    for start, end in pairwise(edges):
        inside = every_gap[(place >= start) & (place < end)]
        bins.append({"from": start, "to": end, "p50_ns": percentile(inside, 50)})
    return bins


def send_spread_ns(records: Sequence[RequestRecord], wave: int) -> int:
    """Time between the first and the last start of the first `wave` requests."""
    sent = sorted(record.sent_ns for record in records if record.sent_ns)[:wave]
    return sent[-1] - sent[0] if sent else 0


def queue_ns(record: RequestRecord) -> int:
    """How long the client held a request back: sent - scheduled."""
    return record.sent_ns - record.scheduled_ns


def instant_gap_share(records: Sequence[RequestRecord], instant_ns: int = 1000) -> float:
    """Share of chunk gaps below `instant_ns`: a buffered reply arrives in one piece."""
    gaps = np.concatenate([itl_chunk_ns(record) for record in records] or [np.empty(0)])
    return float((gaps < instant_ns).mean()) if len(gaps) else 0.0


def percentile(samples: Samples, q: float) -> float | None:
    """Exact percentile by linear interpolation. None, not 0, when there are no samples."""
    return float(np.percentile(samples, q)) if len(samples) else None


def pooled(parts: Sequence[Samples]) -> Samples:
    """All samples of all requests in one array."""
    return np.concatenate(parts) if parts else np.empty(0)
