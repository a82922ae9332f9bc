"""Triton form: one launch a layer; each row's compact blocks are dealt to a few programs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SCORE_LIMIT, SUSPECT, BlockHistory
from sglang_spin.core.slot_history import SlotHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.compile_case import CompileCase

if TYPE_CHECKING:
    from torch import Tensor

TILE = 32  # blocks at a time: 8 KB of scores in flight
NUM_WARPS = 4
NUM_STAGES = 1
PROGRAMS_PER_SM = 8
INTERPRETED_PROGRAMS = 3  # splits rows in the middle, as a GPU does

_BLOCK = tl.constexpr(BLOCK)
_LIMIT = tl.constexpr(SCORE_LIMIT)
_SUSPECT = tl.constexpr(SUSPECT)


@triton.jit
def _stash_maxima(recent, score, o_block, m_column):
    """score: fp32 [TILE, 64], entries past the length lower than any that counts."""
    number = tl.where(score == score, score, float("inf"))  # tl.max would drop a NaN
    best = tl.max(number, 1)
    # adding zero: the sign of a zero maximum would depend on the reduction's order
    best = tl.where(tl.abs(best) <= _LIMIT, best + 0.0, _SUSPECT)
    tl.store(recent + o_block, best.to(tl.int32, bitcast=True), mask=m_column)


@triton.jit
def _stash_slots(slots, score, o_block, m_column, m_used):
    trusted = tl.where(tl.abs(score) <= _LIMIT, score, _SUSPECT)
    value = tl.where(m_used, trusted, float("nan"))
    o_slot = o_block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    tl.store(slots + o_slot, value, mask=m_column[:, None] & (o_slot >= 0))


@triton.jit(do_not_specialize=["width"])
def observe_kernel(
    logits,  # fp32 [batch * ROWS, >= width * 64]
    blocks,  # i32 [batch, width], of this layer
    lengths,  # i32 [batch * ROWS]
    request_rows,  # i64 [batch]
    stash,  # this layer's, i32 [rows, blocks] or, with SLOTS, fp32 [rows, blocks * 64]
    width,
    logits_stride,
    blocks_stride,
    length_stride,
    request_stride,
    stash_stride,
    draft_stride,  # from row to row of a request
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,  # of each request
    TILE: tl.constexpr,
):
    i_row = tl.program_id(1).to(tl.int64)
    i_request = i_row // ROWS
    row = tl.load(request_rows + i_request * request_stride)
    length = tl.load(lengths + i_row * length_stride)
    count = tl.minimum((length + _BLOCK - 1) // _BLOCK, width)
    # padding rows own no state
    count = tl.where(row == 0, 0, count)
    line = stash + row * stash_stride + i_row % ROWS * draft_stride
    for start in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
        o_column = start + tl.arange(0, TILE)
        m_column = o_column < count
        o_entry = o_column[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]  # [TILE, 64]
        m_used = m_column[:, None] & (o_entry < length)
        score = tl.load(logits + i_row * logits_stride + o_entry, mask=m_used, other=-_LIMIT)
        o_block = tl.load(blocks + i_request * blocks_stride + o_column, mask=m_column, other=0)
        if SLOTS:
            _stash_slots(line, score, o_block, m_column, m_used)
        else:
            _stash_maxima(line, score, o_block, m_column)


def stash(state: SpinState, layer: int, logits: Tensor, plan: Plan) -> None:
    """Launch; arguments as api.observe has checked them."""
    history = state.history
    slots = isinstance(history, SlotHistory)
    target = history.stash if isinstance(history, SlotHistory) else _recent(history)
    batch, width = plan.blocks.shape[1:]
    blocks, lengths, rows = plan.blocks[layer], plan.lengths[layer], plan.verify_rows
    if rows > state.stashes:
        logits, lengths, rows = logits[::rows], lengths[::rows], 1
    observe_kernel[(programs_per_row(batch * rows, width, logits.device), batch * rows)](
        logits=logits,
        blocks=blocks,
        lengths=lengths,
        request_rows=plan.request_rows,
        stash=target[layer],
        width=width,
        logits_stride=logits.stride(0),
        blocks_stride=blocks.stride(0),
        length_stride=lengths.stride(0),
        request_stride=plan.request_rows.stride(0),
        stash_stride=target.stride(1),
        draft_stride=target.numel(),
        SLOTS=slots,
        ROWS=rows,
        TILE=TILE,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


def programs_per_row(batch: int, width: int, device: torch.device) -> int:
    """Enough to fill the device, at most one per tile. From shapes alone, as a graph needs."""
    tiles = -(-width // TILE)
    if device.type != "cuda":
        return min(tiles, INTERPRETED_PROGRAMS)
    return min(tiles, -(-PROGRAMS_PER_SM * _processors(device) // batch))


def _recent(history: Any) -> Tensor:
    assert isinstance(history, BlockHistory)
    return history.recent


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


_SIGNATURE = {
    "logits": "*fp32",
    "blocks": "*i32",
    "lengths": "*i32",
    "request_rows": "*i64",
    "width": "i32",
    "logits_stride": "i32:16",
    "blocks_stride": "i32",
    "length_stride": "i32",
    "request_stride": "i32",
    "stash_stride": "i32",
    "draft_stride": "i32",
}


def _case(name: str, stash_type: str, slots: bool, rows: int = 1) -> CompileCase:
    return CompileCase(
        name=f"observe {name}",
        kernel=observe_kernel,
        signature={**_SIGNATURE, "stash": stash_type},
        constants={"SLOTS": slots, "ROWS": rows, "TILE": TILE},
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


COMPILE_CASES = (
    _case("blocks", "*i32", slots=False),
    _case("blocks, 4 rows", "*i32", slots=False, rows=4),
    _case("slots", "*fp32", slots=True),
)
