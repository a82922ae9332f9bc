"""Select: the passes of a fold_select program from scores to kept blocks, chunk by chunk."""

# Triton kernels: parameters are pointers and constexprs that Python's types cannot say
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from sglang_spin.core.audit import KEPT, RETURNED
from sglang_spin.core.block_history import AGE_CAP, NONE, SUSPECT
from sglang_spin.kernels.fold_select.primitives import age_of, mix

_SUSPECT = tl.constexpr(SUSPECT)
_UNSCORED = tl.constexpr(NONE)
_OLDEST = tl.constexpr(AGE_CAP)
_FORCED_KEY = tl.constexpr(0xFFFFFFFF)
_KEPT = tl.constexpr(KEPT)
_RETURNED = tl.constexpr(RETURNED)


@triton.jit
def _ordered(score):
    """u32 keys that sort as fp32 scores do, -0.0 equal to 0.0."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def write_keys(
    scores,  # i32, read as fp32 scores and overwritten with u32 keys
    recent,
    count,
    newest,  # the first block that is kept for being new
    live,
    unit,  # staleness bonus of one step
    noise,
    STALENESS: tl.constexpr,
    RANDOM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    o_chunk = tl.arange(0, CHUNK)
    for start in range(0, count, CHUNK):
        o_block = start + o_chunk
        m_valid = o_block < count
        score = tl.load(scores + o_block, mask=m_valid, other=_UNSCORED)
        score = score.to(tl.float32, bitcast=True)
        m_forced = (score != score) | (o_block == 0) | (o_block >= newest) | (live == 0)
        if STALENESS:
            age = age_of(tl.load(recent + o_block, mask=m_valid & live, other=_UNSCORED))
            bonus = tl.sqrt_rn(age.to(tl.float32)) * unit
            score = tl.where(score < _SUSPECT, score + bonus, score)
        if RANDOM:
            score = mix(noise ^ o_block.to(tl.uint32)).to(tl.float32)
        key = tl.where(m_forced, _FORCED_KEY, _ordered(score)).to(tl.uint32)
        tl.store(scores + o_block, key.to(tl.int32, bitcast=True), mask=m_valid)


@triton.jit
def budgets_of(
    budgets,  # i32 [classes, blocks + 1]
    layer_class,  # i32 [layers]; any without CLASSED
    i_layer,
    count,
    forced,
    class_stride,
    CLASSED: tl.constexpr,
):
    """-> fewest blocks that any layer may keep of a row, and what this layer keeps."""
    least = tl.maximum(tl.load(budgets + count), forced)
    kept = least
    if CLASSED:
        own = budgets + tl.load(layer_class + i_layer).to(tl.int64) * class_stride
        kept = tl.maximum(tl.load(own + count), forced)
    return least, kept


@triton.jit
def _count_above(keys, count, bound, CHUNK: tl.constexpr):
    # little is live here, so twice the chunk fits
    o_chunk = tl.arange(0, 2 * CHUNK)
    above = tl.zeros((2 * CHUNK,), tl.int32)
    for start in range(0, count, 2 * CHUNK):
        o_block = start + o_chunk
        key = tl.load(keys + o_block, mask=o_block < count, other=0).to(tl.uint32, bitcast=True)
        above += (key > bound).to(tl.int32)
    return tl.sum(above, 0)


@triton.jit
def threshold_of(keys, count, budget, CHUNK: tl.constexpr):
    """-> bound, ties: the budget is met by all keys above bound and the first `ties` equal to it.

    Bits from the top; ends early once exactly `budget` keys reach the bound, which random-looking
    scores do after about half of the 32 passes.
    """
    bound = tl.full((), 0, tl.uint32)
    bit = tl.full((), 0x80000000, tl.uint32)
    reached = count
    while (bit != 0) & (reached != budget):
        candidate = bound | bit
        n = _count_above(keys, count, candidate - 1, CHUNK)
        if n >= budget:
            bound = candidate
            reached = n
        bit = bit >> 1
    return bound, budget - _count_above(keys, count, bound, CHUNK)


@triton.jit
def note_flags(keys, recent, flags, count, bound, ties, CHUNK: tl.constexpr):
    """What a real row would keep, as core.audit.Flags, where an audit keeps everything."""
    o_chunk = tl.arange(0, CHUNK)
    equal_before = tl.full((), 0, tl.int32)
    for start in range(0, count, CHUNK):
        o_block = start + o_chunk
        m_valid = o_block < count
        key = tl.load(keys + o_block, mask=m_valid, other=0).to(tl.uint32, bitcast=True)
        equal = (m_valid & (key == bound)).to(tl.int32)
        rank = equal_before + tl.cumsum(equal, 0)
        equal_before += tl.sum(equal, 0)
        m_kept = (key > bound) | ((equal > 0) & (rank <= ties))
        age = age_of(tl.load(recent + o_block, mask=m_valid, other=_UNSCORED))
        m_returned = m_kept & (key != _FORCED_KEY) & (age > 0)
        flag = tl.where(m_kept, _KEPT, 0) | tl.where(m_returned, _RETURNED, 0)
        tl.store(flags + o_block, flag.to(tl.uint8), mask=m_valid)


@triton.jit
def compact_kept(
    pages,  # i32: keys on entry, the kept pages in ascending block order on return
    blocks,
    recent,
    table,
    count,
    live,
    bound,
    ties,
    CHUNK: tl.constexpr,
):
    """Also marks the ages. In place: a chunk writes columns that it or earlier chunks have read."""
    o_chunk = tl.arange(0, CHUNK)
    above_before = tl.full((), 0, tl.int32)
    equal_before = tl.full((), 0, tl.int32)
    for start in range(0, count, CHUNK):
        o_block = start + o_chunk
        m_valid = o_block < count
        key = tl.load(pages + o_block, mask=m_valid, other=0).to(tl.uint32, bitcast=True)
        m_above = m_valid & (key > bound)
        m_equal = m_valid & (key == bound)
        # both counts stay below 2**15, so one scan carries them
        both = m_above.to(tl.int32) + (m_equal.to(tl.int32) << 16)
        ranks = tl.cumsum(both, 0)
        equal_rank = equal_before + (ranks >> 16)
        m_kept = m_above | (m_equal & (equal_rank <= ties))
        column = above_before + (ranks & 0xFFFF) + tl.minimum(equal_rank, ties) - 1
        totals = tl.sum(both, 0)
        above_before += totals & 0xFFFF
        equal_before += totals >> 16
        page = tl.load(table + o_block, mask=m_kept, other=0)
        age = age_of(tl.load(recent + o_block, mask=m_valid & live, other=_UNSCORED))
        older = _UNSCORED | tl.where(m_kept, 0, tl.minimum(age + 1, _OLDEST))
        tl.debug_barrier()
        tl.store(pages + column, page, mask=m_kept)
        tl.store(blocks + column, o_block, mask=m_kept)
        tl.store(recent + o_block, older, mask=m_valid & live)


@triton.jit
def fill_tail(pages, blocks, first_page, budget, width, CHUNK: tl.constexpr):
    """Columns past the kept ones name a page that exists: scorers may prefetch through them."""
    o_chunk = tl.arange(0, CHUNK)
    for start in range(budget, width, CHUNK):
        o_column = start + o_chunk
        m_tail = o_column < width
        tl.store(pages + o_column, tl.zeros((CHUNK,), tl.int32) + first_page, mask=m_tail)
        tl.store(blocks + o_column, tl.zeros((CHUNK,), tl.int32), mask=m_tail)
