"""One run over time: tokens, gaps and running requests, second by second."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.metrics import (
    NS_PER_S,
    Samples,
    Window,
    full_run_window,
    itl_token_ns,
    percentile,
    pooled,
)
from harness.record import RequestRecord

FEWEST_BINS, MOST_BINS = 24, 240


@dataclass(frozen=True)
class Timeline:
    """Equal bins from the first request sent to the last token, all lists of the same length.

    seconds: middle of each bin; tok_s: tokens received in it per second; running: mean number of
    requests between their first and last token.
    """

    seconds: list[float]
    tok_s: list[float]
    running: list[float]


def _edges(window: Window, bin_s: float) -> NDArray[np.float64]:
    """Edges of bins of `bin_s`, or of others where there would be too few or too many."""
    start, end = window
    count = max(FEWEST_BINS, min(MOST_BINS, int((end - start) / NS_PER_S / bin_s)))
    return np.linspace(start, end, count + 1)


def _bin_of(times: Samples, edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Bin of each time: it ends a bin rather than begins it, or the last would hold a step more."""
    return np.clip(np.digitize(times, edges, right=True), 1, len(edges) - 1) - 1


def itl_over_time(
    records: Sequence[RequestRecord], window: Window, bin_s: float = 1.0
) -> tuple[list[float], list[float]]:
    """Middle of each bin, s, and the median gap per token, ns, of the tokens received in it.

    NaN where none was.
    """
    edges = _edges(window, bin_s)
    gaps = pooled([itl_token_ns(record) for record in records])
    # a chunk's tokens all arrive with it
    ends = pooled([np.repeat(record.chunk_t_ns, record.chunk_tokens)[record.chunk_tokens[0] :]
                   for record in records if record.chunk_t_ns])  # fmt: skip
    place = _bin_of(ends, edges)
    medians = [percentile(gaps[place == one], 50) for one in range(len(edges) - 1)]
    middle = (edges[:-1] + edges[1:]) / 2
    shown = [math.nan if value is None else value for value in medians]
    return ((middle - window[0]) / NS_PER_S).tolist(), shown


def timeline(records: Sequence[RequestRecord], bin_s: float = 1.0) -> Timeline | None:
    """Bins of `bin_s`, others where there would be too few or too many. None without a token."""
    window = full_run_window(records)
    if window is None or window[1] <= window[0]:
        return None
    start = window[0]
    edges = _edges(window, bin_s)
    tokens = np.zeros(len(edges) - 1)
    busy = np.zeros(len(edges) - 1)
    for record in records:
        if not record.chunk_t_ns:
            continue
        times = np.array(record.chunk_t_ns, dtype=np.float64)
        np.add.at(tokens, _bin_of(times, edges), np.array(record.chunk_tokens, float))
        first, last = times[0], times[-1]
        busy += np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], first), 0, None)
    width = np.diff(edges)
    middle = (edges[:-1] + edges[1:]) / 2
    return Timeline(
        seconds=((middle - start) / NS_PER_S).tolist(),
        tok_s=(tokens / width * NS_PER_S).tolist(),
        running=(busy / width).tolist(),
    )
