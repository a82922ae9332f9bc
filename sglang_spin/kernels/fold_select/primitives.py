"""Fold and predict: the passes of a fold_select program that end in scores, chunk by chunk.

Chunks, because the work then follows the row's length and not the width of the page table, and
because a row of 16,384 blocks does not fit the registers. Between passes the scores, and then their
keys, wait in the output `pages`, which is written last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import (
    AGE_BITS,
    LEAST_EXTENT,
    LEVELS,
    NONE,
    SUSPECT,
)

_SUSPECT = tl.constexpr(SUSPECT)
_UNSCORED = tl.constexpr(NONE)
_AGE_MASK = tl.constexpr(AGE_BITS)
_TOP_LEVEL = tl.constexpr(LEVELS)
_LEAST = tl.constexpr(LEAST_EXTENT)
_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def average(old, new, keep, gain):
    """BlockHistory's moving average."""
    mean = old * keep + new * gain
    trusted = old < _SUSPECT
    return tl.where(trusted & (new < _SUSPECT), mean, tl.where(trusted, old, new))


@triton.jit
def age_of(recent):
    """Steps since the last score; recent: i32 bits as in BlockHistory."""
    score = recent.to(tl.float32, bitcast=True)
    return tl.where(score == score, 0, recent & _AGE_MASK)


@triton.jit
def mix(value):
    """counter_random.mix on u32."""
    value = value ^ (value >> 16)
    value = value * 0x7FEB352D
    value = value ^ (value >> 15)
    value = value * 0x846CA68B
    return value ^ (value >> 16)


@triton.jit
def noise_base(seed, generation, step, layer):
    """The part of counter_random.block_noise that all blocks of a (layer, row) share, u32."""
    row = mix(generation.to(tl.uint32) ^ seed.to(tl.uint32))
    row = mix(row ^ step.to(tl.uint32))
    return mix(row ^ mix((layer + 1).to(tl.uint32)))


@triton.jit
def audit_due(row, generation, step, every, stride):
    """Audit.due."""
    return ((row + generation) % every * stride + step) % every == 0


@triton.jit
def blocks_to_fold(stashed, length, live, RATIO: tl.constexpr, VERIFY: tl.constexpr):
    """Blocks that a row's last step scored, 0 if its token was not accepted; lengths in tokens."""
    if VERIFY:
        folded = 0  # by a launch of its own
    else:
        last = tl.load(stashed)
        accepted = live & (last > 0) & (length > last)
        folded = tl.where(accepted, (last // RATIO + _BLOCK - 1) // _BLOCK, 0)
    return folded


@triton.jit
def extent_of(length, more, width, RATIO: tl.constexpr, VERIFY: tl.constexpr):
    """-> blocks of a request's first and of its last row, and the first block kept as newest.

    A length past the table must not write past the row.
    """
    first = tl.minimum((length // RATIO + _BLOCK - 1) // _BLOCK, width)
    count = first
    newest = count - 1
    if VERIFY:
        count = tl.minimum(((length + more) // RATIO + _BLOCK - 1) // _BLOCK, width)
        newest = count - 1 - tl.minimum(more, 1)
    return first, count, newest


@triton.jit
def fold_and_predict(
    vertical,  # fp32, this program's line, as all pointers here
    distance,  # fp32
    recent,  # i32
    prior,  # fp32, this layer's [pages]
    table,  # i32, this row's page table
    scores,  # i32 scratch, receives fp32 bits
    first,  # blocks now, of the first row where there are several
    count,  # blocks now, of the last row
    newest,  # the first block that is kept for being new
    folded,  # blocks of the step whose scores are folded, 0 for none
    live,
    started,  # seed from prior
    keep,
    gain,
    DIAGONAL: tl.constexpr,
    VERIFY: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """-> lowest and highest trusted score, blocks forced, blocks seeded, blocks cold."""
    o_chunk = tl.arange(0, CHUNK)
    low = tl.full((CHUNK,), float("inf"), tl.float32)
    high = tl.full((CHUNK,), -float("inf"), tl.float32)
    forced = tl.zeros((CHUNK,), tl.int32)
    seeded = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, count, CHUNK):
        o_block = start + o_chunk
        m_valid = o_block < count
        m_read = m_valid & live
        v = tl.load(vertical + o_block, mask=m_read, other=float("nan"))
        seen = tl.load(recent + o_block, mask=m_read, other=_UNSCORED).to(tl.float32, bitcast=True)
        m_scored = (o_block < folded) & (seen == seen)
        v = tl.where(m_scored, average(v, seen, keep, gain), v)
        tl.store(vertical + o_block, v, mask=m_scored)
        if started:
            page = tl.load(table + o_block, mask=m_valid, other=0).to(tl.int64)
            inherited = tl.load(prior + page, mask=m_valid, other=float("nan"))
            m_known = inherited == inherited
            v = tl.where(m_known, inherited, v)
            tl.store(vertical + o_block, v, mask=m_known)
            # as good as just scored: its staleness starts counting now
            tl.store(recent + o_block, tl.full((CHUNK,), _UNSCORED, tl.int32), mask=m_known)
            seeded += m_known.to(tl.int32)
        m_trusted = v < _SUSPECT
        score = v
        if DIAGONAL:
            o_distance = count - 1 - o_block
            d = tl.load(distance + o_distance, mask=m_read, other=float("nan"))
            # the block that was at this distance when the scores were observed
            o_then = o_block + (folded - count)
            m_then = m_read & (o_then >= 0)
            then = tl.load(recent + o_then, mask=m_then, other=_UNSCORED)
            then = then.to(tl.float32, bitcast=True)
            m_then = m_then & (then == then)
            d = tl.where(m_then, average(d, then, keep, gain), d)
            tl.store(distance + o_distance, d, mask=m_then)
            score = tl.where(m_trusted & (d < _SUSPECT), (v + d) * 0.5, v)
            if VERIFY:
                # what the first row predicts, where it has a block less
                m_first = m_read & (o_block < first) & (first < count)
                d = tl.load(distance + first - 1 - o_block, mask=m_first, other=float("nan"))
                earlier = tl.where(m_trusted & (d < _SUSPECT), (v + d) * 0.5, v)
                score = tl.where(m_first, tl.maximum(earlier, score), score)
        tl.store(scores + o_block, score.to(tl.int32, bitcast=True), mask=m_valid)
        low = tl.minimum(low, tl.where(m_trusted, score, float("inf")))
        high = tl.maximum(high, tl.where(m_trusted, score, -float("inf")))
        m_forced = (v != v) | (o_block == 0) | (o_block >= newest) | (live == 0)
        # both counts stay below 2**15, so one sum carries them
        forced += (m_forced & m_valid).to(tl.int32) + (((v != v) & m_valid).to(tl.int32) << 16)
    both = tl.sum(forced, 0)
    return tl.min(low, 0), tl.max(high, 0), both & 0xFFFF, tl.sum(seeded, 0), both >> 16


@triton.jit
def spread_of(scores, count, low, high, CHUNK: tl.constexpr):
    """block_history.spread of the trusted scores, the squares summed in halves that fit i32."""
    extent = tl.maximum(high - low, 0.0)
    if extent > _LEAST:
        scale = tl.div_rn(1.0, extent) * _TOP_LEVEL
        o_chunk = tl.arange(0, CHUNK)
        known = tl.zeros((CHUNK,), tl.int32)
        first = tl.zeros((CHUNK,), tl.int32)
        square_low = tl.zeros((CHUNK,), tl.int32)
        square_high = tl.zeros((CHUNK,), tl.int32)
        for start in range(0, count, CHUNK):
            o_block = start + o_chunk
            score = tl.load(scores + o_block, mask=o_block < count, other=_UNSCORED)
            score = score.to(tl.float32, bitcast=True)
            m_trusted = score < _SUSPECT
            level = tl.where(m_trusted, (score - low) * scale, 0.0).to(tl.int32)
            square = level.to(tl.uint32) * level.to(tl.uint32)
            known += m_trusted.to(tl.int32)
            first += level
            square_low += (square & 0xFFFF).to(tl.int32)
            square_high += (square >> 16).to(tl.int32)
        n = tl.sum(known, 0).to(tl.int64)
        total = tl.sum(first, 0).to(tl.int64)
        squares = (tl.sum(square_high, 0).to(tl.int64) << 16) + tl.sum(square_low, 0).to(tl.int64)
        variance = n * squares - total * total
        deviation = tl.div_rn(tl.sqrt_rn(variance.to(tl.float32)), n.to(tl.float32))
        unit = deviation * tl.div_rn(extent, _TOP_LEVEL)
    else:
        unit = 0.0
    return unit
