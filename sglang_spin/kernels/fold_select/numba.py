"""CPU form: the step as compiled loops, for machines without a GPU.

The torch form is some ninety small operators a step; on a CPU their dispatch costs more than their
work. Same bits as the reference; work bounded by each row's blocks; row 0 is not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, types

from sglang_spin.core import block_history as core
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import AGE_BITS, AGE_CAP, BlockHistory
from sglang_spin.core.step import Plan, SpinState

if TYPE_CHECKING:
    from torch import Tensor

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
def _fold(vertical, distance, recent, folded, keep, gain, diagonal):
    seen = recent.view(np.float32)
    for b in range(folded):
        score = seen[b]
        if not np.isnan(score):
            vertical[b] = _average(vertical[b], score, keep, gain)
            if diagonal:
                d = folded - 1 - b
                distance[d] = _average(distance[d], score, keep, gain)


@njit(cache=True)
def _seed(vertical, recent, prior, table, count):
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


@njit(cache=True)
def _predict(scores, vertical, distance, recent, count, staleness, diagonal):
    """scores[:count], NaN where cold."""
    for b in range(count):
        score = vertical[b]
        if diagonal and score < SUSPECT:
            d = distance[count - 1 - b]
            if d < SUSPECT:
                score = (score + d) * HALF
        scores[b] = score
    if staleness > ZERO:
        unit = _spread(scores, count) * staleness
        seen = recent.view(np.float32)
        for b in range(count):
            if scores[b] < SUSPECT:
                age = recent[b] & AGE_BITS if np.isnan(seen[b]) else 0
                scores[b] += np.sqrt(np.float32(age)) * unit


@njit(cache=True)
def _draw(scores, count, seed, generation, step, layer):
    """Random scores in place of the predicted; cold blocks stay cold."""
    row = _mix(_mix((np.int64(generation) & MASK) ^ seed) ^ (np.int64(step) & MASK))
    base = row ^ _mix(np.int64(layer + 1))
    for b in range(count):
        if not np.isnan(scores[b]):
            scores[b] = np.float32(_mix(_mix(base) ^ b))


@njit(cache=True)
def _force(scores, count, live):
    """Give forced blocks the score infinity; returns their number."""
    forced = 0
    for b in range(count):
        if not live or b == 0 or b == count - 1 or np.isnan(scores[b]):
            scores[b] = np.float32(np.inf)
            forced += 1
    return forced


@njit(cache=True)
def _keep(scores, recent, table, count, budget, live, pages, blocks):
    """Write the best `budget` blocks in ascending order, and every block's new age."""
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
        if kept:
            pages[column], blocks[column] = table[b], b
            column += 1
        if live:
            age = recent[b] & AGE_BITS if np.isnan(seen[b]) else 0
            recent[b] = NONE if kept else NONE | np.int32(min(age + 1, AGE_CAP))


_F32, _I32, _I64, _FLAG = types.float32, types.int32, types.int64, types.boolean
# declared, so that importing compiles (once a machine) and no decode step has to
_SIGNATURE = types.void(
    types.Tuple((_F32[:, :, ::1], _F32[:, :, ::1], _I32[:, :, ::1])),
    _F32[:, ::1],
    _I32[::1],
    types.Tuple((_FLAG[::1], _I32[::1], _I32[::1], _I32[::1])),
    types.UniTuple(_I64[::1], 3),
    types.Tuple((_I32[:, :], _I32[:], _I64[:])),
    types.Tuple((_I32[:, :, :], _I32[:, :, :], _I32[:])),
    types.UniTuple(_F32, 3),
    types.Tuple((_FLAG, _FLAG, _FLAG, _I64, _I64)),
)


@njit(_SIGNATURE, cache=True)
def _step(history, prior, budgets, rows_state, totals, batch, out, weights, flags):
    vertical, distance, recent = history
    fresh, generation, step, stashed = rows_state
    kept_total, seen_total, scalars = totals
    table, lengths, owners = batch
    pages, blocks, compact_lengths = out
    keep, gain, staleness = weights
    diagonal, random, fill, seed, ratio = flags
    width = table.shape[1]
    scores = np.empty(width, np.float32)
    for i in range(owners.shape[0]):
        row, length = owners[i], lengths[i]
        count = min((length // ratio + BLOCK - 1) // BLOCK, width)
        live = row != 0
        last = stashed[row]
        accepted = live and last > 0 and length > last
        folded = (last // ratio + BLOCK - 1) // BLOCK if accepted else 0
        started, seeded, budget = live and fresh[row], 0, 0
        for layer in range(vertical.shape[0]):
            v, d, r = vertical[layer, row], distance[layer, row], recent[layer, row]
            _fold(v, d, r, folded, keep, gain, diagonal)
            if started:
                seeded = _seed(v, r, prior[layer], table[i], count)
            _predict(scores, v, d, r, count, staleness, diagonal)
            if random:
                _draw(scores, count, seed, generation[row], step[row], layer)
            budget = max(budgets[count], _force(scores, count, live))
            _keep(scores, r, table[i], count, budget, live, pages[layer, i], blocks[layer, i])
            if fill:
                pages[layer, i, budget:], blocks[layer, i, budget:] = table[i, 0], 0
            if live:
                kept_total[layer] += budget
                seen_total[layer] += count
        compact_lengths[i] = length // ratio - BLOCK * (count - budget)
        if live:
            stashed[row], fresh[row], step[row] = length, False, step[row] + 1
        if started:
            scalars[1 if seeded else 2] += 1
            scalars[3] += seeded
            scalars[4] += count - seeded
    scalars[0] += np.any(owners != 0)


def begin(
    state: SpinState, page_table: Tensor, lengths: Tensor, out: Plan, fill_tail: bool
) -> None:
    """Run the step. out.request_rows is an input, the rest of out is written."""
    history, config = state.history, state.config
    assert isinstance(history, BlockHistory)
    alpha = history.alpha
    _step(
        (history.vertical.numpy(), history.distance.numpy(), history.recent.numpy()),
        state.prior.numpy(),
        state.budgets.numpy(),
        (
            state.fresh.numpy(),
            state.generation.numpy(),
            state.step.numpy(),
            state.stashed.numpy(),
        ),
        (
            state.counters.kept.numpy(),
            state.counters.seen.numpy(),
            state.counters.scalars.numpy(),
        ),
        (page_table.numpy(), lengths.numpy(), out.request_rows.numpy()),
        (out.pages.numpy(), out.blocks.numpy(), out.lengths.numpy()),
        (np.float32(1 - alpha), np.float32(alpha), np.float32(history.staleness)),
        (history.diagonal, config.policy == "random", fill_tail, config.seed, state.shape.ratio),
    )
