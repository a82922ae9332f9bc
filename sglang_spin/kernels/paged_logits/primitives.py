"""The pieces of the paged scorer's kernel."""

# Triton's decorator and the functions under it carry no types
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SCORE_LIMIT, SUSPECT
from sglang_spin.kernels.paged_logits.layout import DIM, GROUP

PAGE = tl.constexpr(BLOCK)
_DIM = tl.constexpr(DIM)
_GROUPS = tl.constexpr(DIM // GROUP)
_LIMIT = tl.constexpr(SCORE_LIMIT)
_SUSPECT = tl.constexpr(SUSPECT)


@triton.jit
def longest_rows(lengths, units, capacity, NEXT_N: tl.constexpr, UNITS: tl.constexpr):
    """Entries of each unit's longest row, [UNITS] int32."""
    o_unit = tl.arange(0, UNITS)
    longest = tl.zeros((UNITS,), tl.int32)
    for i_row in tl.static_range(NEXT_N):
        length = tl.load(lengths + o_unit * NEXT_N + i_row, mask=o_unit < units, other=0)
        longest = tl.maximum(longest, tl.minimum(length, capacity))
    return longest


@triton.jit
def at(values, index, UNITS: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, UNITS) == index, values, 0), 0)


@triton.jit
def load_fp8_keys(keys, key_scales, page, o_slot, m_page, keys_stride, scales_stride):
    """Keys [TILE, 128] fp8 and their scales [TILE] fp32."""
    p_key = (keys + page * keys_stride + o_slot * _DIM)[:, None] + tl.arange(0, _DIM)[None, :]
    p_scale = key_scales + page * scales_stride + PAGE * _DIM // 4 + o_slot
    key = tl.load(p_key, mask=m_page[:, None], other=0.0)
    return key, tl.load(p_scale, mask=m_page, other=0.0)


@triton.jit
def load_fp4_keys(keys, key_scales, page, o_slot, m_page, keys_stride, scales_stride):
    """Keys [TILE, 64], two values a byte, and their scales [TILE, 4] ue8m0."""
    BYTES: tl.constexpr = _DIM // 2
    p_key = (keys + page * keys_stride + o_slot * BYTES)[:, None] + tl.arange(0, BYTES)[None, :]
    p_scale = (key_scales + page * scales_stride + PAGE * BYTES + o_slot * _GROUPS)[:, None]
    p_scale += tl.arange(0, _GROUPS)[None, :]
    key = tl.load(p_key, mask=m_page[:, None], other=0)
    return key, tl.load(p_scale, mask=m_page[:, None], other=0)


@triton.jit
def score_fp8(key, key_scale, q, weights, row, HEADS: tl.constexpr):
    o_head = row * HEADS + tl.arange(0, HEADS)
    query = tl.load(q + o_head[:, None] * _DIM + tl.arange(0, _DIM)[None, :])
    product = tl.dot(key, tl.trans(query))  # [TILE, HEADS]
    return _gated_sum(product, tl.load(weights + o_head)) * key_scale


@triton.jit
def score_fp4(key, key_scale, q, q_scales, weights, row, HEADS: tl.constexpr):
    o_head = row * HEADS + tl.arange(0, HEADS)
    query = tl.load(q + o_head[:, None] * (_DIM // 2) + tl.arange(0, _DIM // 2)[None, :])
    query_scale = tl.load(q_scales + o_head[:, None] * _GROUPS + tl.arange(0, _GROUPS)[None, :])
    # 0, but not to the compiler: 3.6.0 and 3.8.0 fail on a constant start of a block-scaled product
    zero = tl.full((key.shape[0], HEADS), 0.0, tl.float32) + (row < 0).to(tl.float32)
    product = tl.dot_scaled(
        key, key_scale, "e2m1", tl.trans(query), query_scale, "e2m1", acc=zero
    )  # [TILE, HEADS]
    return _gated_sum(product, tl.load(weights + o_head))


@triton.jit
def score_fp4_widened(
    key, key_scale, q, q_scales, weights, row, HEADS: tl.constexpr, WIDE: tl.constexpr
):
    """For chips and compilers without a block-scaled product. Even and odd values go separately."""
    o_head = row * HEADS + tl.arange(0, HEADS)
    query = tl.load(q + o_head[:, None] * (_DIM // 2) + tl.arange(0, _DIM // 2)[None, :])
    query_scale = tl.load(q_scales + o_head[:, None] * _GROUPS + tl.arange(0, _GROUPS)[None, :])
    key_scale, query_scale = _spread_ue8m0(key_scale), _spread_ue8m0(query_scale)
    key_even, key_odd = _widen(key & 15, key_scale, WIDE), _widen(key >> 4, key_scale, WIDE)
    even, odd = _widen(query & 15, query_scale, WIDE), _widen(query >> 4, query_scale, WIDE)
    product = tl.dot(key_even, tl.trans(even), input_precision="ieee")
    product = tl.dot(key_odd, tl.trans(odd), product, input_precision="ieee")  # [TILE, HEADS]
    return _gated_sum(product, tl.load(weights + o_head))


@triton.jit
def _widen(code, scale, WIDE: tl.constexpr):
    """e2m1 codes in the low four bits, times fp32 scales of the same shape; exact in bf16."""
    code = code.to(tl.int32)
    exponent, fraction = (code >> 1) & 3, code & 1
    doubled = tl.where(exponent > 0, (2 + fraction) << tl.maximum(exponent - 1, 0), fraction)
    value = doubled.to(tl.float32) * 0.5 * scale
    return tl.where(code >= 8, -value, value).to(WIDE)


@triton.jit
def _spread_ue8m0(scale):
    """ue8m0 [N, 4] to fp32 [N, 64]: the scale of each packed pair."""
    bits = scale.to(tl.int32)
    power = tl.where(bits > 0, bits << 23, 1 << 22).to(tl.float32, bitcast=True)
    power = tl.where(bits == 255, float("nan"), power)
    pairs = tl.broadcast_to(power[:, :, None], (scale.shape[0], _GROUPS, _DIM // 2 // _GROUPS))
    return tl.reshape(pairs, (scale.shape[0], _DIM // 2))


@triton.jit
def _gated_sum(product, weight):
    rectified = tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.sum(rectified * weight[None, :], 1)


@triton.jit
def store_maxima(score, inside, maxima, i_tile, length, TILE_PAGES: tl.constexpr):
    o_block = i_tile * TILE_PAGES + tl.arange(0, TILE_PAGES)
    best = _block_maxima(score, inside, TILE_PAGES)
    tl.store(maxima + o_block, best, mask=o_block * PAGE < length)


@triton.jit
def place_maxima(score, inside, maxima, columns, i_tile, length, TILE_PAGES: tl.constexpr):
    """As store_maxima, each block in the column of `maxima` that `columns` names."""
    o_block = i_tile * TILE_PAGES + tl.arange(0, TILE_PAGES)
    m_block = o_block * PAGE < length
    o_column = tl.load(columns + o_block, mask=m_block, other=0)
    tl.store(maxima + o_column, _block_maxima(score, inside, TILE_PAGES), mask=m_block)


@triton.jit
def _block_maxima(score, inside, TILE_PAGES: tl.constexpr):
    number = tl.where(score == score, score, float("inf"))  # a maximum would drop a NaN
    used = tl.reshape(tl.where(inside, number, -_LIMIT), (TILE_PAGES, PAGE))
    best = tl.max(used, 1)
    return tl.where(tl.abs(best) <= _LIMIT, best, _SUSPECT) + 0.0  # -0.0 as core has it: 0.0
