"""The passes of the CPU form, one row of one layer at a time: fold, seed, predict, select."""

# compiled loops: numba infers the types of every call
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit

from sglang_spin.core import block_history as core
from sglang_spin.core.audit import KEPT, RETURNED
from sglang_spin.core.block_history import AGE_BITS, AGE_CAP
from sglang_spin.kernels.fold_select.numba_rows import row_scores

NONE = np.int32(core.NONE)
SUSPECT, LEAST_EXTENT = np.float32(core.SUSPECT), np.float32(core.LEAST_EXTENT)
LEVELS, HALF = np.float32(core.LEVELS), np.float32(0.5)
ZERO, MASK = np.float32(0.0), 0xFFFFFFFF


@njit(inline="always")
def _average(old, new, keep, gain):
    if old < SUSPECT:
        return old * keep + new * gain if new < SUSPECT else old
    return new


@njit(inline="always")
def _mix(value):
    value = value ^ (value >> 16)
    value = (value * 0x7FEB352D) & MASK
    value = value ^ (value >> 15)
    value = (value * 0x846CA68B) & MASK
    return value ^ (value >> 16)


@njit(cache=True)
def fold(vertical, distance, scores, line, seen, weights, diagonal):
    """Take in the accepted rows of the last step, in their order.

    scores: scratch. line: the stash, and the layer and request row in it. seen: tokens of the first
    row of that step, accepted rows, tokens of an entry.
    """
    (stash, layer, row), (last, accepted, ratio), (keep, gain, _) = line, seen, weights
    for j in range(accepted):
        count = row_scores(scores, stash[0, layer, row], stash[j, layer, row], last, j, ratio)
        for b in range(count):
            if not np.isnan(scores[b]):
                vertical[b] = _average(vertical[b], scores[b], keep, gain)
                if diagonal:
                    d = count - 1 - b
                    distance[d] = _average(distance[d], scores[b], keep, gain)


@njit(cache=True)
def seed(vertical, recent, prior, table, count):
    seeded = 0
    for b in range(count):
        value = prior[table[b]]
        if not np.isnan(value):
            vertical[b] = value
            recent[b] = NONE
            seeded += 1
    return seeded


@njit(cache=True)
def _spread(scores, count):
    low, high, known = np.float32(np.inf), np.float32(-np.inf), 0
    for b in range(count):
        if scores[b] < SUSPECT:
            low, high, known = min(low, scores[b]), max(high, scores[b]), known + 1
    extent = high - low
    if not extent > LEAST_EXTENT:
        return ZERO
    scale = LEVELS / extent
    first, second = np.int64(0), np.int64(0)
    for b in range(count):
        if scores[b] < SUSPECT:
            level = np.int64((scores[b] - low) * scale)
            first, second = first + level, second + level * level
    variance = known * second - first * first
    deviation = np.sqrt(np.float32(variance)) / np.float32(known)
    return deviation * (extent / LEVELS)


@njit(inline="always")
def _with_distance(average, distance):
    return (average + distance) * HALF if distance < SUSPECT else average


@njit(cache=True)
def predict(scores, vertical, distance, recent, extent, staleness, diagonal):
    """Scores of all blocks, NaN where cold: the best in any of the request's rows that has it."""
    first, count, _ = extent
    for b in range(count):
        score = vertical[b]
        if diagonal and score < SUSPECT:
            score = _with_distance(vertical[b], distance[count - 1 - b])
            if first < count and b < first:
                score = max(score, _with_distance(vertical[b], distance[first - 1 - b]))
        scores[b] = score
    if staleness > ZERO:
        unit = _spread(scores, count) * staleness
        seen = recent.view(np.float32)
        for b in range(count):
            if scores[b] < SUSPECT:
                age = recent[b] & AGE_BITS if np.isnan(seen[b]) else 0
                scores[b] += np.sqrt(np.float32(age)) * unit


@njit(cache=True)
def draw(scores, count, seed, generation, step, layer):
    """Random scores in place of the predicted; cold blocks stay cold."""
    row = _mix(_mix((np.int64(generation) & MASK) ^ seed) ^ (np.int64(step) & MASK))
    base = row ^ _mix(np.int64(layer + 1))
    for b in range(count):
        if not np.isnan(scores[b]):
            scores[b] = np.float32(_mix(_mix(base) ^ b))


@njit(cache=True)
def force(scores, extent, live):
    """Give forced blocks the score infinity; returns their number, and that of cold blocks."""
    _, count, newest = extent
    forced, cold = 0, 0
    for b in range(count):
        cold += np.isnan(scores[b])
        if not live or b == 0 or b >= newest or np.isnan(scores[b]):
            scores[b] = np.float32(np.inf)
            forced += 1
    return forced, cold


@njit(inline="always")
def due(row, generation, step, every, stride):
    """Audit.due."""
    return every > 0 and ((row + generation) % every * stride + step) % every == 0


@njit(cache=True)
def keep(scores, recent, table, count, budget, live, audited, line):
    """Write the best `budget` blocks in ascending order, and every block's new age.

    An audited row has them only noted in flags, and all its blocks kept.
    """
    pages, blocks, flags = line
    if count == 0:
        return
    bound = np.partition(scores[:count], count - budget)[count - budget]
    ties = budget
    for b in range(count):
        ties -= scores[b] > bound
    seen, column = recent.view(np.float32), 0
    for b in range(count):
        kept = scores[b] > bound
        if scores[b] == bound and ties > 0:
            kept, ties = True, ties - 1
        age = recent[b] & AGE_BITS if np.isnan(seen[b]) else 0
        if audited:
            returned = kept and age > 0 and scores[b] < np.inf
            flags[b] = kept * KEPT + returned * RETURNED
            kept = True
        if kept:
            pages[column], blocks[column] = table[b], b
            column += 1
        if live:
            recent[b] = NONE if kept else NONE | np.int32(min(age + 1, AGE_CAP))


@njit(cache=True)
def select(scores, recent, table, extent, bounds, live, due, line):
    """Force and keep; returns blocks kept, cold blocks, and whether the row is audited.

    line: pages, blocks and flags, the outputs. bounds: the smallest budget of any layer and that of
    this one, unless more are forced.
    """
    count, (least, own) = extent[1], bounds
    forced, cold = force(scores, extent, live)
    budget = max(own, forced)
    full = due and max(least, forced) < count
    keep(scores, recent, table, count, budget, live, full, line)
    return count if full else budget, cold, full


@njit(cache=True)
def count_start(scalars, started, count, seeded):
    """One more request start, if it is one, its inherited and its cold blocks."""
    if started:
        scalars[1 if seeded else 2] += 1
        scalars[3] += seeded
        scalars[4] += count - seeded
