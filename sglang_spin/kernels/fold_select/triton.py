"""Triton form: one launch a step, one program per (indexer layer, batch row).

A row's small state is read by the programs of all its layers and must change once all have read it:
the last to arrive writes it. That and the counters are integer atomics, whose order shows nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.compile_case import CompileCase
from sglang_spin.kernels.fold_select.primitives import fold_and_predict, noise_base, spread_of
from sglang_spin.kernels.fold_select.selection import (
    compact_kept,
    fill_tail,
    threshold_of,
    write_keys,
)

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 512  # blocks at a time
NUM_WARPS = 8
MAX_REGISTERS = (
    64  # four programs on a multiprocessor; left alone, ptxas spills a word to get there
)
NUM_STAGES = 1  # passes write what the next one reads: nothing may be loaded ahead

_BLOCK = tl.constexpr(BLOCK)


@triton.jit
def _count_step(totals, request_rows, batch, request_stride):
    """One more step, if any row of the batch is real."""
    real = 0
    for start in range(0, batch, 128):
        o_row = start + tl.arange(0, 128)
        row = tl.load(request_rows + o_row * request_stride, mask=o_row < batch, other=0)
        real += tl.sum((row != 0).to(tl.int32), 0)
    if real > 0:
        tl.atomic_add(totals, tl.full((), 1, tl.int64))


@triton.jit
def _count_start(totals, count, seeded):
    warm = (seeded > 0).to(tl.int64)
    tl.atomic_add(totals + 1, warm)
    tl.atomic_add(totals + 2, 1 - warm)
    tl.atomic_add(totals + 3, seeded.to(tl.int64))
    tl.atomic_add(totals + 4, (count - seeded).to(tl.int64))


@triton.jit(do_not_specialize=["batch", "width", "seed"])
def fold_select_kernel(
    vertical,  # fp32 [layers, rows, blocks]
    distance,  # fp32, the same shape
    recent,  # i32, the same shape
    prior,  # fp32 [layers, pages + 1]
    budgets,  # i32 [blocks + 1]
    fresh,  # bool [rows], as the next three
    generation,  # i32
    step,  # i32
    stashed,  # i32
    kept_total,  # i64 [layers], as the next
    seen_total,
    totals,  # i64 [5]
    arrivals,  # i32 [rows], zero between launches
    page_table,  # i32 [batch, width]
    lengths,  # i32 [batch]
    request_rows,  # i64 [batch]
    pages,  # i32 [layers, batch, width], as the next
    blocks,
    compact_lengths,  # i32 [batch]
    batch,
    width,
    state_rows,
    state_blocks,
    prior_stride,
    table_stride,
    length_stride,
    request_stride,
    layer_stride,  # of pages and blocks
    row_stride,
    keep,  # weight of the old average
    gain,  # weight of the new score
    staleness,
    seed,
    DIAGONAL: tl.constexpr,
    STALENESS: tl.constexpr,
    RANDOM: tl.constexpr,
    FILL_TAIL: tl.constexpr,
    RATIO: tl.constexpr,  # tokens of an entry; lengths and stashed are tokens
    CHUNK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    i_layer = tl.program_id(1).to(tl.int64)
    row = tl.load(request_rows + i_row * request_stride)
    live = row != 0
    length = tl.load(lengths + i_row * length_stride)
    # a length past the table must not write past the row
    entries = length // RATIO
    count = tl.minimum((entries + _BLOCK - 1) // _BLOCK, width)
    last = tl.load(stashed + row)
    accepted = live & (last > 0) & (length > last)
    folded = tl.where(accepted, (last // RATIO + _BLOCK - 1) // _BLOCK, 0)
    started = tl.load(fresh + row) & live
    noise = noise_base(seed, tl.load(generation + row), tl.load(step + row), i_layer)

    line = (i_layer * state_rows + row) * state_blocks
    table = page_table + i_row * table_stride
    o_pages = pages + i_layer * layer_stride + i_row * row_stride
    o_blocks = blocks + i_layer * layer_stride + i_row * row_stride
    low, high, forced, seeded = fold_and_predict(
        vertical=vertical + line,
        distance=distance + line,
        recent=recent + line,
        prior=prior + i_layer * prior_stride,
        table=table,
        scores=o_pages,
        count=count,
        folded=folded,
        live=live,
        started=started,
        keep=keep,
        gain=gain,
        DIAGONAL=DIAGONAL,
        CHUNK=CHUNK,
    )
    tl.debug_barrier()
    # every layer knows the same blocks, so the forced of this layer are the forced of all
    budget = tl.maximum(tl.load(budgets + count), forced)
    unit = 0.0
    if STALENESS:
        unit = spread_of(o_pages, count, low, high, CHUNK) * staleness
        tl.debug_barrier()
    write_keys(
        o_pages,
        recent + line,
        count,
        live,
        unit,
        noise,
        STALENESS=STALENESS,
        RANDOM=RANDOM,
        CHUNK=CHUNK,
    )
    tl.debug_barrier()
    bound, ties = threshold_of(o_pages, count, budget, CHUNK)
    compact_kept(o_pages, o_blocks, recent + line, table, count, live, bound, ties, CHUNK)
    if FILL_TAIL:
        tl.debug_barrier()
        fill_tail(o_pages, o_blocks, tl.load(table), budget, width, CHUNK)

    if i_layer == 0:
        tl.store(compact_lengths + i_row, entries - _BLOCK * (count - budget))
        if i_row == 0:
            _count_step(totals, request_rows, batch, request_stride)
        if started:
            _count_start(totals, count, seeded)
    if live:
        tl.atomic_add(kept_total + i_layer, budget.to(tl.int64))
        tl.atomic_add(seen_total + i_layer, count.to(tl.int64))
        tl.debug_barrier()
        if tl.atomic_add(arrivals + row, 1) == tl.num_programs(1) - 1:
            tl.store(arrivals + row, 0)
            tl.store(stashed + row, length)
            tl.store(step + row, tl.load(step + row) + 1)
            tl.store(fresh + row, False)


def begin(
    state: SpinState,
    page_table: Tensor,
    lengths: Tensor,
    out: Plan,
    arrivals: Tensor,
    fill_tail: bool,
) -> None:
    """Launch. out.request_rows is an input, the rest of out is written.

    arrivals: int32 [state rows], zero between launches.
    """
    history = state.history
    assert isinstance(history, BlockHistory)
    layers, rows, blocks = history.vertical.shape
    batch, width = page_table.shape
    fold_select_kernel[(batch, layers)](
        vertical=history.vertical,
        distance=history.distance,
        recent=history.recent,
        prior=state.prior,
        budgets=state.budgets,
        fresh=state.fresh,
        generation=state.generation,
        step=state.step,
        stashed=state.stashed,
        kept_total=state.counters.kept,
        seen_total=state.counters.seen,
        totals=state.counters.scalars,
        arrivals=arrivals,
        page_table=page_table,
        lengths=lengths,
        request_rows=out.request_rows,
        pages=out.pages,
        blocks=out.blocks,
        compact_lengths=out.lengths,
        batch=batch,
        width=width,
        state_rows=rows,
        state_blocks=blocks,
        prior_stride=state.prior.stride(0),
        table_stride=page_table.stride(0),
        length_stride=lengths.stride(0),
        request_stride=out.request_rows.stride(0),
        layer_stride=out.pages.stride(0),
        row_stride=out.pages.stride(1),
        keep=1 - history.alpha,
        gain=history.alpha,
        staleness=history.staleness,
        seed=state.config.seed,
        DIAGONAL=history.diagonal,
        STALENESS=bool(history.staleness),
        RANDOM=state.config.policy == "random",
        FILL_TAIL=fill_tail,
        RATIO=state.shape.ratio,
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        enable_fp_fusion=False,  # the reference rounds after every operation
        # HIP has no such option
        **({} if torch.version.hip else {"maxnreg": MAX_REGISTERS}),
    )


_TYPES = {
    "*fp32": "vertical distance prior",
    "*i32": "recent budgets generation step stashed arrivals page_table lengths"
    " pages blocks compact_lengths",
    "*i64": "kept_total seen_total totals request_rows",
    "*i1": "fresh",
    "i32": "batch width state_rows state_blocks prior_stride table_stride length_stride"
    " request_stride layer_stride row_stride seed",
    "fp32": "keep gain staleness",
}
_SIGNATURE = {name: kind for kind, names in _TYPES.items() for name in names.split()}


def _case(policy: str, aligned: bool = False, **constants: int) -> CompileCase:
    strides = ("state_blocks", "table_stride", "layer_stride", "row_stride")
    wide = dict.fromkeys(strides, "i32:16") if aligned else {}
    return CompileCase(
        name=f"fold_select {policy}{', aligned' if aligned else ''}",
        kernel=fold_select_kernel,
        signature={**_SIGNATURE, **wide},
        constants={"RATIO": 1, **constants, "CHUNK": CHUNK},
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        fp_fusion=False,
        max_registers=MAX_REGISTERS,
    )


# one shape for every width, as a program walks its row in chunks; aligned where all widths are
# multiples of 16, which makes loads wide
COMPILE_CASES = (
    _case("spin", aligned=True, DIAGONAL=True, STALENESS=True, RANDOM=False, FILL_TAIL=False),
    _case("spin", DIAGONAL=True, STALENESS=True, RANDOM=False, FILL_TAIL=True),
    _case("spin V4", True, DIAGONAL=True, STALENESS=True, RANDOM=False, FILL_TAIL=False, RATIO=4),
    _case("prev-iter, dense", DIAGONAL=False, STALENESS=False, RANDOM=False, FILL_TAIL=True),
    _case("random", DIAGONAL=False, STALENESS=False, RANDOM=True, FILL_TAIL=True),
)
