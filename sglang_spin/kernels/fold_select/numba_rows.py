"""CPU form of what concerns the rows of a request: which were accepted, and how long they are."""

# compiled loops: numba infers the types of every call
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from sglang_spin.core.block import BLOCK


@njit(inline="always")
def _blocks(length):
    return (length + BLOCK - 1) // BLOCK


@njit(inline="always")
def extent(length, more, ratio, width):
    """Blocks of the request's first and last row, and the first block that is kept as newest."""
    count = min(_blocks((length + more) // ratio), width)
    return min(_blocks(length // ratio), width), count, count - (2 if more else 1)


@njit(inline="always")
def seen(live, length, last, verified, ratio):
    """Of the last step: tokens of the first row, rows to fold, tokens of an entry.

    Rows to fold are as many of those kept as the request grew by.
    """
    accepted = min(length - last, verified) if live and last > 0 and length > last else 0
    return last, accepted, ratio


@njit(cache=True)
def row_scores(out, recent, stash, last, j, ratio):
    """Row j's scores of the last step into out: NaN where it was not scored. Returns its blocks."""
    first, count = _blocks(last // ratio), min(_blocks((last + j) // ratio), out.shape[0])
    seen, scores = recent.view(np.float32), stash.view(np.float32)
    for b in range(count):
        # a block that begins within the step has no score of the first row; it is always kept
        out[b] = np.nan if b < first and np.isnan(seen[b]) else scores[b]
    return count


@njit(inline="always")
def write_lengths(lengths, i, tokens, skipped, more, ratio):
    """Compact lengths of the rows of the batch's request i, each of one token more.

    skipped: blocks.
    """
    for j in range(more + 1):
        lengths[i * (more + 1) + j] = (tokens + j) // ratio - BLOCK * skipped


@njit(inline="always")
def finish(rows_state, row, length, kept_rows):
    """Note a live request's step; kept_rows: of how many of its rows scores will be kept."""
    fresh, _, step, stashed, verified = rows_state
    fresh[row], step[row] = False, step[row] + 1
    stashed[row], verified[row] = length, kept_rows
