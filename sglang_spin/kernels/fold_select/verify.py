"""Triton form of the fold where steps verify drafts: one launch before fold_select's own.

A block's averages take in one score for every accepted row, in the order of the rows. A program
walks V and D of one (indexer layer, batch row); no element is read by another lane, so each pass
may write what it reads.
"""

# Triton kernels: parameters are pointers and constexprs that Python's types cannot say
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import NONE, BlockHistory
from sglang_spin.kernels.compile_case import CompileCase
from sglang_spin.kernels.fold_select.primitives import average

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import SpinState

CHUNK = 512
NUM_WARPS = 4

_BLOCK = tl.constexpr(BLOCK)
_UNSCORED = tl.constexpr(NONE)


@triton.jit
def _score_of(stash, draft_stride, j, o_block, m_row, first):
    """Row j's score of each block in the last step, NaN where it has none.

    A block that the first row has was scored by all rows or by none; the block that begins within
    the step, past `first` blocks, is always kept.
    """
    m_block = m_row & (o_block >= 0)
    seen = tl.load(stash + o_block, mask=m_block & (o_block < first), other=0)
    seen = seen.to(tl.float32, bitcast=True)
    m_scored = m_block & (seen == seen)
    score = tl.load(stash + j * draft_stride + o_block, mask=m_scored, other=_UNSCORED)
    return score.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["width"])
def fold_verified_kernel(
    vertical,  # fp32 [layers, rows, blocks]
    distance,  # fp32, the same shape
    stash,  # i32 [STASHES, layers, rows, blocks]
    stashed,  # i32 [rows], as the next
    verified,
    lengths,  # i32 [batch]
    request_rows,  # i64 [batch]
    width,
    state_rows,
    state_blocks,
    draft_stride,
    length_stride,
    request_stride,
    keep,  # weight of the old average
    gain,  # weight of the new score
    DIAGONAL: tl.constexpr,
    STASHES: tl.constexpr,
    RATIO: tl.constexpr,  # tokens of an entry; lengths and stashed are tokens
    CHUNK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    i_layer = tl.program_id(1).to(tl.int64)
    row = tl.load(request_rows + i_row * request_stride)
    last = tl.load(stashed + row)
    grown = tl.load(lengths + i_row * length_stride) - last
    # padding rows own no state
    accepted = tl.where((row != 0) & (last > 0), tl.minimum(grown, tl.load(verified + row)), 0)
    first = (last // RATIO + _BLOCK - 1) // _BLOCK
    total = tl.minimum(((last + accepted - 1) // RATIO + _BLOCK - 1) // _BLOCK, width)
    total = tl.where(accepted > 0, total, 0)
    line = (i_layer * state_rows + row) * state_blocks
    stride = draft_stride.to(tl.int64)
    for start in range(0, total, CHUNK):
        o = start + tl.arange(0, CHUNK)
        m = o < total
        v = tl.load(vertical + line + o, mask=m, other=float("nan"))
        for j in tl.static_range(STASHES):
            count = ((last + j) // RATIO + _BLOCK - 1) // _BLOCK
            score = _score_of(stash + line, stride, j, o, m & (j < accepted) & (o < count), first)
            v = tl.where(score == score, average(v, score, keep, gain), v)
        tl.store(vertical + line + o, v, mask=m)
        if DIAGONAL:
            d = tl.load(distance + line + o, mask=m, other=float("nan"))
            for j in tl.static_range(STASHES):
                o_block = ((last + j) // RATIO + _BLOCK - 1) // _BLOCK - 1 - o
                score = _score_of(stash + line, stride, j, o_block, m & (j < accepted), first)
                d = tl.where(score == score, average(d, score, keep, gain), d)
            tl.store(distance + line + o, d, mask=m)


def fold(state: SpinState, lengths: Tensor, request_rows: Tensor, width: int) -> None:
    """Launch. lengths: int32 [n], of the first rows of this step; request_rows: int64 [n]."""
    history = state.history
    assert isinstance(history, BlockHistory)
    layers, rows, blocks = history.vertical.shape
    fold_verified_kernel[(request_rows.shape[0], layers)](
        vertical=history.vertical,
        distance=history.distance,
        stash=history.stash,
        stashed=state.stashed,
        verified=state.verified,
        lengths=lengths,
        request_rows=request_rows,
        width=width,
        state_rows=rows,
        state_blocks=blocks,
        draft_stride=history.stash.stride(0),
        length_stride=lengths.stride(0),
        request_stride=request_rows.stride(0),
        keep=1 - history.alpha,
        gain=history.alpha,
        DIAGONAL=history.diagonal,
        STASHES=history.stash.shape[0],
        RATIO=state.shape.ratio,
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
        num_stages=1,
        enable_fp_fusion=False,  # the reference rounds after every operation
    )


_TYPES = {
    "*fp32": "vertical distance",
    "*i32": "stash stashed verified lengths",
    "*i64": "request_rows",
    "i32": "width state_rows state_blocks draft_stride length_stride request_stride",
    "fp32": "keep gain",
}
COMPILE_CASES = tuple(
    CompileCase(
        name=f"fold_verified {stashes} rows",
        kernel=fold_verified_kernel,
        signature={name: kind for kind, names in _TYPES.items() for name in names.split()},
        constants={"DIAGONAL": True, "STASHES": stashes, "RATIO": 1, "CHUNK": CHUNK},
        num_warps=NUM_WARPS,
        num_stages=1,
        fp_fusion=False,
    )
    for stashes in (2, 4)
)
