"""The end of a fold_select program: the server's totals, and the row's own small state."""

# Triton kernels: parameters are pointers and constexprs that Python's types cannot say
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_step(totals, request_rows, batch, request_stride):
    """One more step, if any row of the batch is real."""
    real = 0
    for start in range(0, batch, 128):
        o_row = start + tl.arange(0, 128)
        row = tl.load(request_rows + o_row * request_stride, mask=o_row < batch, other=0)
        real += tl.sum((row != 0).to(tl.int32), 0)
    if real > 0:
        tl.atomic_add(totals, tl.full((), 1, tl.int64))


@triton.jit
def count_start(totals, count, seeded):
    """One more request start, its inherited and its cold blocks."""
    warm = (seeded > 0).to(tl.int64)
    tl.atomic_add(totals + 1, warm)
    tl.atomic_add(totals + 2, 1 - warm)
    tl.atomic_add(totals + 3, seeded.to(tl.int64))
    tl.atomic_add(totals + 4, (count - seeded).to(tl.int64))


@triton.jit
def count_cold(totals, layer, live, cold):
    """A real row's cold blocks, once: they are cold in every layer."""
    if (layer == 0) & live:
        tl.atomic_add(totals + 5, cold.to(tl.int64))


@triton.jit
def count_row(kept_total, seen_total, kept, count):
    """A real row's blocks in one layer."""
    tl.atomic_add(kept_total, kept.to(tl.int64))
    tl.atomic_add(seen_total, count.to(tl.int64))


@triton.jit
def advance_row(arrivals, stashed, step, fresh, length):
    """By the last layer to arrive: until then the others may still read what changes here."""
    if tl.atomic_add(arrivals, 1) == tl.num_programs(1) - 1:
        tl.store(arrivals, 0)
        tl.store(stashed, length)
        tl.store(step, tl.load(step) + 1)
        tl.store(fresh, False)


@triton.jit
def write_lengths(
    line,  # i32 [batch * rows of a request]
    i_layer,
    i_row,
    length,
    skipped,
    more,
    CLASSED: tl.constexpr,
    RATIO: tl.constexpr,
    VERIFY: tl.constexpr,
):
    """Compact lengths of the batch's request i_row, whose rows grow by one token each.

    By each layer where they have classes, else by the first.
    """
    own = i_layer == 0
    if CLASSED:
        own = i_layer >= 0
    if own:
        if VERIFY:
            for j in range(more + 1):
                tl.store(line + i_row * (more + 1) + j, (length + j) // RATIO - skipped)
        else:
            tl.store(line + i_row, length // RATIO - skipped)
