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
from sglang_spin.kernels.fold_select.cases import compile_cases, max_registers
from sglang_spin.kernels.fold_select.primitives import (
    audit_due,
    blocks_to_fold,
    extent_of,
    fold_and_predict,
    noise_base,
    spread_of,
)
from sglang_spin.kernels.fold_select.row_end import (
    advance_row,
    count_cold,
    count_row,
    count_start,
    count_step,
    write_lengths,
)
from sglang_spin.kernels.fold_select.selection import (
    budgets_of,
    compact_kept,
    fill_tail,
    note_flags,
    threshold_of,
    write_keys,
)
from sglang_spin.kernels.fold_select.verify import COMPILE_CASES as FOLD_CASES
from sglang_spin.kernels.fold_select.verify import fold as fold_rows

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 512  # blocks at a time
NUM_WARPS = 8
NUM_STAGES = 1  # passes write what the next one reads: nothing may be loaded ahead

_BLOCK = tl.constexpr(BLOCK)


@triton.jit(do_not_specialize=["batch", "width", "seed", "more", "audit_every"])
def fold_select_kernel(
    vertical,  # fp32 [layers, rows, blocks]
    distance,  # fp32, the same shape
    recent,  # i32, the same shape
    prior,  # fp32 [layers, pages + 1]
    budgets,  # i32 [classes, blocks + 1], the first class having the smallest
    layer_class,  # i32 [layers], None without CLASSED
    fresh,  # bool [rows], as the next three
    generation,  # i32
    step,  # i32
    stashed,  # i32
    kept_total,  # i64 [layers], as the next
    seen_total,
    totals,  # i64 [6]
    arrivals,  # i32 [rows], zero between launches
    page_table,  # i32 [batch, width]
    lengths,  # i32 [batch]
    request_rows,  # i64 [batch]
    pages,  # i32 [layers, batch, width], as the next
    blocks,
    compact_lengths,  # i32 [layers, batch], one line without CLASSED; request-major with VERIFY
    audited,  # bool [batch], as the next None without AUDIT
    flags,  # u8, as pages
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
    class_stride,  # of budgets
    line_stride,  # of compact_lengths
    keep,  # weight of the old average
    gain,  # weight of the new score
    staleness,
    seed,
    more,  # rows of each request beyond its first
    audit_every,
    audit_stride,
    DIAGONAL: tl.constexpr,
    STALENESS: tl.constexpr,
    RANDOM: tl.constexpr,
    FILL_TAIL: tl.constexpr,
    AUDIT: tl.constexpr,
    CLASSED: tl.constexpr,  # layers have budgets by class; then AUDIT
    RATIO: tl.constexpr,  # tokens of an entry; lengths and stashed are tokens
    VERIFY: tl.constexpr,  # several rows a request, and the last step is folded already
    CHUNK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    i_layer = tl.program_id(1).to(tl.int64)
    row = tl.load(request_rows + i_row * request_stride)
    live = row != 0
    length = tl.load(lengths + i_row * length_stride)
    # a length past the table must not write past the row
    first, count, newest = extent_of(length, more, width, RATIO, VERIFY)
    folded = blocks_to_fold(stashed + row, length, live, RATIO, VERIFY)
    started = tl.load(fresh + row) & live
    i_life = tl.load(generation + row)
    i_step = tl.load(step + row)
    noise = noise_base(seed, i_life, i_step, i_layer)

    line = (i_layer * state_rows + row) * state_blocks
    table = page_table + i_row * table_stride
    o_recent = recent + line
    o_out = i_layer * layer_stride + i_row * row_stride
    o_pages, o_blocks = pages + o_out, blocks + o_out
    low, high, forced, seeded, cold = fold_and_predict(
        vertical=vertical + line,
        distance=distance + line,
        recent=o_recent,
        prior=prior + i_layer * prior_stride,
        table=table,
        scores=o_pages,
        first=first,
        count=count,
        newest=newest,
        folded=folded,
        live=live,
        started=started,
        keep=keep,
        gain=gain,
        DIAGONAL=DIAGONAL,
        VERIFY=VERIFY,
        CHUNK=CHUNK,
    )
    count_cold(totals, i_layer, live, cold)
    tl.debug_barrier()
    # every layer knows the same blocks, so the forced of this layer are the forced of all
    least, budget = budgets_of(budgets, layer_class, i_layer, count, forced, class_stride, CLASSED)
    unit = 0.0
    if STALENESS:
        unit = spread_of(o_pages, count, low, high, CHUNK) * staleness
        tl.debug_barrier()
    write_keys(o_pages, o_recent, count, newest, live, unit, noise, STALENESS, RANDOM, CHUNK)
    tl.debug_barrier()
    bound, ties = threshold_of(o_pages, count, budget, CHUNK)
    if AUDIT:
        full = live & (least < count) & audit_due(row, i_life, i_step, audit_every, audit_stride)
        if full:
            note_flags(o_pages, o_recent, flags + o_out, count, bound, ties, CHUNK)
            bound, ties, budget = bound & 0, count, count
    compact_kept(o_pages, o_blocks, o_recent, table, count, live, bound, ties, CHUNK)
    if FILL_TAIL:
        tl.debug_barrier()
        fill_tail(o_pages, o_blocks, tl.load(table), budget, width, CHUNK)

    skipped = _BLOCK * (count - budget)
    own_lengths = compact_lengths + i_layer * line_stride
    write_lengths(own_lengths, i_layer, i_row, length, skipped, more, CLASSED, RATIO, VERIFY)
    if i_layer == 0:
        if AUDIT:
            tl.store(audited + i_row, full)
        if i_row == 0:
            count_step(totals, request_rows, batch, request_stride)
        if started:
            count_start(totals, count, seeded)
    if live:
        count_row(kept_total + i_layer, seen_total + i_layer, budget, count)
        tl.debug_barrier()
        advance_row(arrivals + row, stashed + row, step + row, fresh + row, length)


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
    verify, classed = state.shape.verify_rows > 1, state.budgets.classes > 1
    budgets = state.budgets.of(out.verify_rows)
    if verify:
        fold_rows(state, lengths, out.request_rows, width)
        state.verified.index_fill_(0, out.request_rows, min(out.verify_rows, state.stashes))
    fold_select_kernel[(batch, layers)](
        vertical=history.vertical,
        distance=history.distance,
        recent=history.recent,
        prior=state.prior,
        budgets=budgets,
        layer_class=state.budgets.layer_class if classed else None,
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
        audited=out.flags.audited if out.flags else None,
        flags=out.flags.blocks if out.flags else None,
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
        class_stride=budgets.stride(0),
        line_stride=out.lengths.stride(0),
        keep=1 - history.alpha,
        gain=history.alpha,
        staleness=history.staleness,
        seed=state.config.seed,
        more=out.verify_rows - 1,
        audit_every=state.audit.every if state.audit else 1,
        audit_stride=state.audit.stride if state.audit else 1,
        DIAGONAL=history.diagonal,
        STALENESS=bool(history.staleness),
        RANDOM=state.config.policy == "random",
        FILL_TAIL=fill_tail,
        AUDIT=out.flags is not None,
        CLASSED=classed,
        RATIO=state.shape.ratio,
        VERIFY=verify,
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        enable_fp_fusion=False,  # the reference rounds after every operation
        # HIP has no such option
        **({} if torch.version.hip else {"maxnreg": max_registers(out.flags is not None)}),
    )


COMPILE_CASES = FOLD_CASES + compile_cases(
    fold_select_kernel,
    {"CHUNK": CHUNK},
    num_warps=NUM_WARPS,
    num_stages=NUM_STAGES,
)
