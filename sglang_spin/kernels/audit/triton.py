"""Triton form: one launch a layer, one program per batch row; rows not audited end at once.

A cell of the tallies belongs to one program, so adding to it needs no atomic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from sglang_spin.core.audit import BINS, TALLIES, Audit
from sglang_spin.kernels.audit.primitives import misses_of, threshold_of
from sglang_spin.kernels.compile_case import CompileCase

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import Plan

CHUNK = 2048  # entries at a time
NUM_WARPS = 16  # an audited row has a multiprocessor to itself
NUM_STAGES = 1

_BINS = tl.constexpr(BINS)
_TALLIES = tl.constexpr(len(TALLIES))


@triton.jit
def _add(cell, value):
    tl.store(cell, tl.load(cell) + value)


@triton.jit(do_not_specialize=["topk"])
def audit_kernel(
    logits,  # fp32 [batch, entries]
    lengths,  # i32 [batch]
    request_rows,  # i64 [batch]
    audited,  # bool [batch]
    flags,  # u8 [batch, width], of this layer
    edges,  # i32 [BINS]
    tallies,  # i64 [rows, 5], of this layer
    histogram,  # i32 [rows, BINS], of this layer
    topk,
    logits_stride,
    length_stride,
    request_stride,
    flags_stride,
    CHUNK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    if tl.load(audited + i_row):
        row = tl.load(request_rows + i_row * request_stride)
        length = tl.load(lengths + i_row * length_stride)
        line = logits + i_row * logits_stride
        bound, ties = threshold_of(line, length, topk, CHUNK)
        missed, returned, useful = misses_of(
            line, flags + i_row * flags_stride, length, bound, ties, CHUNK
        )
        cell = tallies + row * _TALLIES
        _add(cell, 1)
        _add(cell + 1, topk)
        _add(cell + 2, missed)
        _add(cell + 3, returned)
        _add(cell + 4, useful)
        edge = tl.load(edges + tl.arange(0, _BINS))
        column = tl.sum((missed >= edge).to(tl.int32), 0) - 1
        _add(histogram + row * _BINS + column, 1)


def add(audit: Audit, layer: int, logits: Tensor, plan: Plan) -> None:
    """Launch; arguments as api.audit has checked them."""
    assert plan.flags is not None
    flags, lengths = plan.flags.blocks[layer], plan.lengths[layer]
    audit_kernel[(flags.shape[0],)](
        logits=logits,
        lengths=lengths,
        request_rows=plan.request_rows,
        audited=plan.flags.audited,
        flags=flags,
        edges=audit.edges,
        tallies=audit.tallies[layer],
        histogram=audit.histogram[layer],
        topk=audit.topk,
        logits_stride=logits.stride(0),
        length_stride=lengths.stride(0),
        request_stride=plan.request_rows.stride(0),
        flags_stride=flags.stride(0),
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


COMPILE_CASES = (
    CompileCase(
        name="audit",
        kernel=audit_kernel,
        signature={
            "logits": "*fp32",
            "lengths": "*i32",
            "request_rows": "*i64",
            "audited": "*i1",
            "flags": "*u8",
            "edges": "*i32",
            "tallies": "*i64",
            "histogram": "*i32",
            "topk": "i32",
            "logits_stride": "i32:16",
            "length_stride": "i32",
            "request_stride": "i32",
            "flags_stride": "i32",
        },
        constants={"CHUNK": CHUNK},
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    ),
)
