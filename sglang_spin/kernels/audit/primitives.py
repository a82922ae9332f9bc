"""The passes of an audit over one row's scores, chunk by chunk."""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_spin.core.audit import KEPT, RETURNED
from sglang_spin.core.block import BLOCK

_BLOCK = tl.constexpr(BLOCK)
_KEPT = tl.constexpr(KEPT)
_RETURNED = tl.constexpr(RETURNED)
_DIGITS = tl.constexpr(256)


@triton.jit
def _key(score):
    """u32 that sorts as the score does: -0.0 equal to 0.0, a NaN as low as -inf."""
    score = tl.where(score == score, score, -float("inf"))
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def threshold_of(logits, length, topk, CHUNK: tl.constexpr):
    """-> bound, ties: the top-k are all keys above bound and the first `ties` equal to it.

    Four digits of a byte from the top: each pass counts the digits of the keys that share the bytes
    found so far.
    """
    o_chunk = tl.arange(0, CHUNK)
    o_digit = tl.arange(0, _DIGITS)
    bound = tl.full((), 0, tl.uint32)
    wanted = topk
    for i_digit in tl.static_range(4):
        shift = 24 - 8 * i_digit
        counts = tl.zeros((_DIGITS,), tl.int32)
        for start in range(0, length, CHUNK):
            o_entry = start + o_chunk
            m_entry = o_entry < length
            key = _key(tl.load(logits + o_entry, mask=m_entry, other=0.0))
            if i_digit > 0:
                m_entry = m_entry & (((key ^ bound) >> (shift + 8)) == 0)
            digits = ((key >> shift) & 255).to(tl.int32)
            counts += tl.histogram(digits, _DIGITS, mask=m_entry).to(tl.int32)
        reached = tl.cumsum(counts, 0, reverse=True)
        digit = tl.sum((reached >= wanted).to(tl.int32), 0) - 1
        wanted -= tl.sum(tl.where(o_digit > digit, counts, 0), 0)
        bound = bound | (digit.to(tl.uint32) << shift)
    return bound, wanted


@triton.jit
def misses_of(logits, flags, length, bound, ties, CHUNK: tl.constexpr):
    """-> top-k entries in blocks not kept, blocks that returned, those of them with an entry."""
    o_chunk = tl.arange(0, CHUNK)
    o_part = tl.arange(0, CHUNK // _BLOCK)
    missed = tl.zeros((CHUNK // _BLOCK,), tl.int32)
    returned = tl.zeros((CHUNK // _BLOCK,), tl.int32)
    useful = tl.zeros((CHUNK // _BLOCK,), tl.int32)
    equal_before = tl.full((), 0, tl.int32)
    for start in range(0, length, CHUNK):
        o_entry = start + o_chunk
        m_entry = o_entry < length
        key = _key(tl.load(logits + o_entry, mask=m_entry, other=0.0))
        m_equal = m_entry & (key == bound)
        rank = equal_before + tl.cumsum(m_equal.to(tl.int32), 0)
        equal_before += tl.sum(m_equal.to(tl.int32), 0)
        m_best = (m_entry & (key > bound)) | (m_equal & (rank <= ties))
        best = tl.sum(tl.reshape(m_best.to(tl.int32), (CHUNK // _BLOCK, _BLOCK)), 1)
        o_block = start // _BLOCK + o_part
        flag = tl.load(flags + o_block, mask=o_block * _BLOCK < length, other=_KEPT).to(tl.int32)
        missed += tl.where(flag & _KEPT == 0, best, 0)
        back = (flag & _RETURNED) // _RETURNED
        returned += back
        useful += tl.where(best > 0, back, 0)
    return tl.sum(missed, 0), tl.sum(returned, 0), tl.sum(useful, 0)
