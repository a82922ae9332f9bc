"""One run over time: tokens and running requests, second by second."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.metrics import NS_PER_S, full_run_window
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


def timeline(records: Sequence[RequestRecord], bin_s: float = 1.0) -> Timeline | None:
    """Bins of `bin_s`, others where there would be too few or too many. None without a token."""
    window = full_run_window(records)
    if window is None or window[1] <= window[0]:
        return None
    start, end = window
    length_s = (end - start) / NS_PER_S
    count = max(FEWEST_BINS, min(MOST_BINS, int(length_s / bin_s)))
    edges = np.linspace(start, end, count + 1)
    tokens = np.zeros(count)
    busy = np.zeros(count)
    for record in records:
        if not record.chunk_t_ns:
            continue
        times = np.array(record.chunk_t_ns, dtype=np.float64)
        tokens += np.histogram(times, edges, weights=np.array(record.chunk_tokens, float))[0]
        first, last = times[0], times[-1]
        busy += np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], first), 0, None)
    width = np.diff(edges)
    middle = (edges[:-1] + edges[1:]) / 2
    return Timeline(
        seconds=((middle - start) / NS_PER_S).tolist(),
        tok_s=(tokens / width * NS_PER_S).tolist(),
        running=(busy / width).tolist(),
    )
