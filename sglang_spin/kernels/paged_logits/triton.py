"""Triton scorer: one launch walks every page that the page tables name, in equal shares.

The tile product has tokens as M and heads as N: a page is contiguous in memory, and the sum over
heads stays inside a warp.
"""

# Triton's decorator and the functions under it carry no types
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from sglang_spin.kernels.compile_case import CompileCase
from sglang_spin.kernels.paged_logits import layout
from sglang_spin.kernels.paged_logits.primitives import (
    PAGE,
    at,
    load_fp4_keys,
    load_fp8_keys,
    longest_rows,
    place_maxima,
    score_fp4,
    score_fp4_widened,
    score_fp8,
    store_maxima,
)

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.kernels.paged_logits.operands import Operands

NUM_WARPS = 4


class Tuning(NamedTuple):
    """tile_pages: pages scored in one product."""

    tile_pages: int
    num_stages: int


def tuning_of(product: str, next_n: int) -> Tuning:
    """Chosen from the compile table, for residency without spills; not yet measured on a GPU."""
    if product in ("fp4 as bf16", "fp4 as fp32"):
        return Tuning(tile_pages=1, num_stages=1)  # more of either spills on gfx942
    # 2 pages are 128 tokens, Blackwell's block-scaled M; verify rows hold their queries as well
    return Tuning(tile_pages=2, num_stages=3 if next_n == 1 else 2)


# 2, 3 or 4 programs fit on a multiprocessor, by target and Triton version: 12 fills whole waves
PROGRAMS_PER_SM = 12
INTERPRETED_PROGRAMS = 3
MIN_UNITS = 32  # fewer specialisations for small batches


@triton.jit(do_not_specialize=["units", "capacity"])
def paged_logits_kernel(
    q,  # fp8 [rows, HEADS, 128]; FP4: u8 [rows, HEADS, 64]
    q_scales,  # FP4: u8 [rows, HEADS, 4]; else any
    weights,  # fp32 [rows, HEADS]
    keys,  # the cache as fp8; FP4: as u8
    key_scales,  # the same memory as fp32; FP4: as u8
    table,  # i32 [units / SHARE, blocks]
    lengths,  # i32 [rows]
    logits,  # fp32 [rows, >= capacity]
    maxima,  # MAXIMA: fp32 [rows, >= capacity / 64], or [any, any] if PLACED; else any
    owners,  # PLACED: i64 [rows], the row of `maxima` that each row writes, 0 for none; else any
    columns,  # PLACED: i32 [units / SHARE, >= capacity / 64], columns of `maxima`; else any
    units,  # groups of NEXT_N rows scored together
    capacity,  # entries that both a table row and a row of logits hold
    keys_stride,  # of a page, in elements of `keys`; likewise the next ones
    scales_stride,
    table_stride,
    logits_stride,
    maxima_stride,
    columns_stride,
    HEADS: tl.constexpr,
    NEXT_N: tl.constexpr,
    SHARE: tl.constexpr,  # units to a row of the table
    UNITS: tl.constexpr,
    TILE_PAGES: tl.constexpr,
    FORMAT: tl.constexpr,  # "fp8"; or "fp4" and its forms for want of a block-scaled product
    MAXIMA: tl.constexpr,
    PLACED: tl.constexpr,
):
    TILE: tl.constexpr = TILE_PAGES * PAGE
    o_token = tl.arange(0, TILE)
    o_slot = o_token % PAGE
    longest = longest_rows(lengths, units, capacity, NEXT_N, UNITS)
    tiles = (longest + TILE - 1) // TILE
    ends = tl.cumsum(tiles, 0)
    total = tl.sum(tiles, 0).to(tl.int64)
    tile = (tl.program_id(0) * total // tl.num_programs(0)).to(tl.int32)
    stop = ((tl.program_id(0) + 1) * total // tl.num_programs(0)).to(tl.int32)
    while tile < stop:
        unit = tl.sum((ends <= tile).to(tl.int32), 0)
        end = at(ends, unit, UNITS)
        first = end - at(tiles, unit, UNITS)
        last = tl.minimum(end, stop)
        entries = at(longest, unit, UNITS)
        p_table = table + (unit // SHARE).to(tl.int64) * table_stride
        for i_tile in range(tile - first, last - first):
            o_column = i_tile * TILE + o_token
            m_page = o_column - o_slot < entries
            page = tl.load(p_table + o_column // PAGE, mask=m_page, other=0).to(tl.int64)
            if FORMAT != "fp8":
                key, key_scale = load_fp4_keys(
                    keys, key_scales, page, o_slot, m_page, keys_stride, scales_stride
                )
            else:
                key, key_scale = load_fp8_keys(
                    keys, key_scales, page, o_slot, m_page, keys_stride, scales_stride
                )
            for i_row in tl.static_range(NEXT_N):
                row = unit.to(tl.int64) * NEXT_N + i_row
                length = tl.minimum(tl.load(lengths + row), capacity)
                if FORMAT == "fp8":
                    score = score_fp8(key, key_scale, q, weights, row, HEADS)
                elif FORMAT == "fp4":
                    score = score_fp4(key, key_scale, q, q_scales, weights, row, HEADS)
                else:
                    WIDE: tl.constexpr = tl.bfloat16 if FORMAT == "fp4 as bf16" else tl.float32
                    score = score_fp4_widened(
                        key, key_scale, q, q_scales, weights, row, HEADS, WIDE
                    )
                inside = o_column < length
                tl.store(logits + row * logits_stride + o_column, score, mask=inside)
                if PLACED:
                    owner = tl.load(owners + row)
                    p_columns = columns + (unit // SHARE).to(tl.int64) * columns_stride
                    p_maxima = maxima + owner * maxima_stride
                    begun = tl.where(owner == 0, 0, length)
                    place_maxima(score, inside, p_maxima, p_columns, i_tile, begun, TILE_PAGES)
                elif MAXIMA:
                    p_maxima = maxima + row * maxima_stride
                    store_maxima(score, inside, p_maxima, i_tile, length, TILE_PAGES)
        tile = last


def score(args: Operands) -> None:
    """Enqueue the scorer on the current stream; shapes alone decide the launch."""
    if args.rows == 0 or args.capacity == 0:
        return
    product, maxima, placement = product_of(args), args.maxima, args.placement
    fp4 = product != "fp8"
    # with several rows' accumulators the block-scaled product spills; V4 shares no tables anyway
    together = 1 if fp4 else args.next_n
    units, tuning = args.rows // together, tuning_of(product, together)
    keys, key_scales = _planes(args)
    paged_logits_kernel[(_programs(args.q.device),)](
        q=args.q.view(torch.uint8) if fp4 else args.q,
        q_scales=args.q_scales if fp4 else args.weights,
        weights=args.weights,
        keys=keys,
        key_scales=key_scales,
        table=args.page_table,
        lengths=args.lengths,
        logits=args.logits,
        maxima=args.logits if maxima is None else maxima,
        owners=args.lengths if placement is None else placement.rows,
        columns=args.lengths if placement is None else placement.columns,
        units=units,
        capacity=args.capacity,
        keys_stride=keys.stride(0),
        scales_stride=key_scales.stride(0),
        table_stride=args.page_table.stride(0),
        logits_stride=args.logits.stride(0),
        maxima_stride=0 if maxima is None else maxima.stride(0),
        columns_stride=0 if placement is None else placement.columns.stride(0),
        HEADS=args.heads,
        NEXT_N=together,
        SHARE=args.next_n // together,
        UNITS=max(MIN_UNITS, triton.next_power_of_2(units)),
        TILE_PAGES=tuning.tile_pages,
        FORMAT=product,
        MAXIMA=maxima is not None,
        PLACED=placement is not None,
        num_warps=NUM_WARPS,
        num_stages=tuning.num_stages,
    )


def product_of(args: Operands) -> str:
    """How the kernel multiplies the pages: the product that this device has."""
    if args.format is layout.FP8:
        return "fp8"
    if args.q.is_cuda and torch.version.hip:
        name = torch.cuda.get_device_properties(args.q.device).gcnArchName
        return "fp4 as bf16" if name.startswith("gfx942") else "fp4"
    return "fp4"


def _planes(args: Operands) -> tuple[Tensor, Tensor]:
    """The cache seen as keys and as scales: two types, one memory."""
    if args.format is layout.FP4:
        return args.cache, args.cache
    return args.cache.view(args.q.dtype), args.cache.view(torch.float32)


def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return _processors(device) * PROGRAMS_PER_SM


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


_SIGNATURE = (
    dict.fromkeys(("weights", "logits", "maxima"), "*fp32")
    | dict.fromkeys(("table", "lengths", "columns"), "*i32")
    | {"owners": "*i64"}
    | dict.fromkeys(("units", "capacity"), "i32")
    | dict.fromkeys(("keys_stride", "scales_stride"), "i32:16")
    | dict.fromkeys(("table_stride", "logits_stride", "maxima_stride"), "i32")
    | {"columns_stride": "i32"}
)


def _case(product: str, heads: int, next_n: int = 1, maxima: str = "rows") -> CompileCase:
    """maxima: "rows" of their own, "placed" in the history, or "" for logits only."""
    fp4 = product != "fp8"
    keys, scales = ("*u8", "*u8") if fp4 else ("*fp8e4nv", "*fp32")
    rows = f", next_n {next_n}" if next_n > 1 else ""
    tuning = tuning_of(product, next_n)
    return CompileCase(
        name=f"paged_logits {product}, {heads} heads{rows}{_KINDS[maxima]}",
        kernel=paged_logits_kernel,
        signature=_SIGNATURE | {"q": keys, "q_scales": scales, "keys": keys, "key_scales": scales},
        constants={
            "HEADS": heads,
            "NEXT_N": next_n,
            "SHARE": 1,
            "UNITS": 128,
            "TILE_PAGES": tuning.tile_pages,
            "FORMAT": product,
            "MAXIMA": maxima != "",
            "PLACED": maxima == "placed",
        },
        num_warps=NUM_WARPS,
        num_stages=tuning.num_stages,
        product="fp4" if fp4 else "fp8",
        targets=_TARGETS[product],
    )


_KINDS = {"rows": "", "placed": ", maxima placed", "": ", logits only"}
_TARGETS = {
    "fp8": None,
    "fp4": ("sm_90", "sm_100", "sm_103", "gfx950"),
    "fp4 as bf16": ("gfx942",),
}
COMPILE_CASES = (
    _case("fp8", 64),
    _case("fp8", 64, maxima="placed"),
    _case("fp8", 64, maxima=""),
    _case("fp8", 64, next_n=5),
    _case("fp8", 32),
    _case("fp8", 16),
    _case("fp4", 64),
    _case("fp4", 64, maxima="placed"),
    _case("fp4", 32),
    _case("fp4", 16),
    _case("fp4 as bf16", 64),
)
