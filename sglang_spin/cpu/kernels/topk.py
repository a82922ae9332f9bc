"""Exact top-k of index scores with one tie rule: equal scores go to the lower column.

Selected columns come out in ascending order, so the attention that follows sums in a fixed order.
A row costs two passes over its own length, whatever the width of the score matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.vector import bits_of

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 12  # bits of the first radix pass
BINS = 1 << DIGITS
REST = 32 - DIGITS
FINE = 10  # bits of each later pass: two of them cover REST


def topk_columns(
    scores: Tensor, lengths: Tensor, topk: int, starts: Tensor | None = None
) -> Tensor:
    """Columns, counted from starts[r], of the `topk` best of scores[r, starts[r] :][: lengths[r]].

    scores f32 [rows, width]; lengths int32 [rows]; starts int32 [rows] or None (all 0).
    Returns int32 [rows, topk]: ascending, -1 after min(length, topk). NaN must not occur in range.
    """
    columns = torch.empty((scores.shape[0], topk), dtype=torch.int32)
    begin = torch.zeros_like(lengths) if starts is None else starts
    _select(scores.numpy(), _int32(begin), _int32(lengths), columns.numpy())
    return columns


def topk_slots(
    scores: Tensor, lengths: Tensor, table: Tensor, page_size: int, out: Tensor
) -> Tensor:
    """Write into `out` int32 [rows, topk] the pool slots of each row's best columns, -1 padded.

    table int32 [rows, pages]: column c of a row lies at table[row, c // page_size] * page_size
    + c % page_size. Other arguments and result as for topk_columns.
    """
    columns = topk_columns(scores, lengths, out.shape[1])
    _map_pages(columns.numpy(), table.numpy(), page_size, out.numpy())
    return columns


def topk_slots_of_tokens(
    scores: Tensor,
    lengths: Tensor,
    token_table: Tensor,
    row_of: Tensor,
    topk: int,
    starts: Tensor | None,
) -> Tensor:
    """The same for a table of single tokens: column c of row r is slot token_table[row_of[r], c].

    token_table int32 [requests, max length]; row_of int32 [rows]. Returns int32 [rows, topk].
    """
    columns = topk_columns(scores, lengths, topk, starts)
    out = torch.empty_like(columns)
    _map_tokens(columns.numpy(), token_table.numpy(), _int32(row_of), out.numpy())
    return out


def _int32(vector: Tensor) -> np.ndarray:
    return vector.to(torch.int32).contiguous().numpy()


@njit(inline="always")
def _order_key(score):  # type: ignore[no-untyped-def]
    """An unsigned key that orders like the float; -0.0 and 0.0 share one."""
    bits = bits_of(score + np.float32(0.0))
    return np.uint32(bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000))


@njit(inline="always")
def _cut(counts, wanted):  # type: ignore[no-untyped-def]
    """The highest bin that `wanted` entries from the top reach into, and how many it must give."""
    above = 0
    at = counts.shape[0] - 1
    while above + counts[at] < wanted:
        above += counts[at]
        at -= 1
    return at, wanted - above


@njit(cache=True, boundscheck=False)
def _threshold(keys, count, bin_, wanted):  # type: ignore[no-untyped-def]
    """The wanted-th largest key among keys[:count] of bin_, and how many equal ones to take."""
    prefix = np.uint32(bin_)
    for shift in (REST - FINE, 0):
        counts = np.zeros(1 << FINE, np.int64)
        for i in range(count):
            if keys[i] >> np.uint32(shift + FINE) == prefix:
                counts[(keys[i] >> np.uint32(shift)) & np.uint32((1 << FINE) - 1)] += 1
        digit, wanted = _cut(counts, wanted)
        prefix = (prefix << np.uint32(FINE)) | np.uint32(digit)
    return prefix, wanted


@njit(
    ty.VOID(ty.F32_2S, ty.I32_1, ty.I32_1, ty.I32_2), parallel=True, cache=True, boundscheck=False
)
def _select(scores, starts, lengths, columns):  # type: ignore[no-untyped-def]
    topk = columns.shape[1]
    for r in prange(scores.shape[0]):
        length = lengths[r]
        if length <= topk:
            for i in range(topk):
                columns[r, i] = i if i < length else -1
            continue
        row = scores[r, starts[r] : starts[r] + length]
        counts = np.zeros(BINS, np.int32)
        for c in range(length):
            counts[_order_key(row[c]) >> np.uint32(REST)] += 1
        bin_, wanted = _cut(counts, topk)
        bottom = np.uint32(bin_) << np.uint32(REST)
        room = topk - wanted + counts[bin_]
        keys = np.empty(room, np.uint32)
        found = np.empty(room, np.int32)
        count = 0
        for c in range(length):
            key = _order_key(row[c])
            if key >= bottom:
                keys[count] = key
                found[count] = c
                count += 1
        least, ties = _threshold(keys, count, bin_, wanted)
        at = 0
        for i in range(count):
            if keys[i] > least or (keys[i] == least and ties > 0):
                ties -= keys[i] == least
                columns[r, at] = found[i]
                at += 1


@njit(ty.VOID(ty.I32_2, ty.I32_2S, ty.I64, ty.I32_2S), cache=True, boundscheck=False)
def _map_pages(columns, table, page_size, out):  # type: ignore[no-untyped-def]
    for r in range(columns.shape[0]):
        for i in range(columns.shape[1]):
            c = columns[r, i]
            out[r, i] = table[r, c // page_size] * page_size + c % page_size if c >= 0 else -1


@njit(ty.VOID(ty.I32_2, ty.I32_2S, ty.I32_1, ty.I32_2), cache=True, boundscheck=False)
def _map_tokens(columns, token_table, row_of, out):  # type: ignore[no-untyped-def]
    for r in range(columns.shape[0]):
        for i in range(columns.shape[1]):
            c = columns[r, i]
            out[r, i] = token_table[row_of[r], c] if c >= 0 else -1
