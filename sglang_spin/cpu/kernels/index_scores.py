"""Index scores: sum over heads of gate * relu(query . key), times the key's scale. fp32 throughout.

One tile function serves decode (paged) and prefill (ragged), so a (query, key) pair has one value
wherever it is computed. Work is bounded by the given lengths; columns beyond them are not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.vector_fp8 import decode_fp8
from sglang_spin.cpu.kernels.vector_scores import DIM, HEADS, KEYS, score_block

if TYPE_CHECKING:
    from torch import Tensor

PAGE = 64
SCALE_BYTES = PAGE * DIM  # a page holds 64 x 128 key bytes, then 64 fp32 scales
FEW = 16  # query rows that one thread decodes sooner than two can be woken
QUERY_BLOCK = 32  # prefill rows that share one decoded key block
PIECES = 16  # parallel pieces of a decode call: more than threads, to even out their speed
DECODED = np.float32(256.0)  # what decode_fp8 owes


def paged_index_scores(
    q: Tensor, pages: Tensor, weights: Tensor, lengths: Tensor, table: Tensor, width: int
) -> Tensor:
    """Score each row's query against the keys its page table names.

    q float8_e4m3fn [rows, heads, 128]; pages uint8 [pages, 64 * 132]; weights f32 [rows, heads];
    lengths int32 [rows]; table int32 [rows, >= ceil(length / 64)], any row stride.
    Returns f32 [rows, width], row stride a multiple of 4; columns >= length are uninitialised.
    """
    logits = torch.empty((q.shape[0], -(-width // 4) * 4), dtype=torch.float32)
    queries, gates = _by_head_group(q, weights)
    _score_paged(
        queries,
        gates,
        pages.numpy(),
        lengths.to(torch.int32).contiguous().numpy(),
        table.to(torch.int32).numpy(),
        logits.numpy(),
    )
    return logits[:, :width]


def ragged_index_scores(
    q: Tensor, keys: Tensor, scales: Tensor, weights: Tensor, starts: Tensor, ends: Tensor
) -> Tensor:
    """Score query tokens against contiguous keys, row t over columns starts[t] .. ends[t] - 1.

    q float8_e4m3fn [tokens, heads, 128]; keys float8_e4m3fn [n, 128]; scales f32 [n];
    weights f32 [tokens, heads]; starts, ends int32 [tokens]. Returns f32 [tokens, n].
    """
    logits = torch.empty((q.shape[0], keys.shape[0]), dtype=torch.float32)
    queries, gates = _by_head_group(q, weights)
    _score_ragged(
        queries,
        gates,
        keys.contiguous().view(torch.uint8).numpy(),
        scales.contiguous().numpy(),
        starts.to(torch.int32).contiguous().numpy(),
        ends.to(torch.int32).contiguous().numpy(),
        logits.numpy(),
    )
    return logits


def _by_head_group(q: Tensor, weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Decoded queries f32 [rows, groups, 128, 32] and gates f32 [rows, groups, 32], zero padded."""
    rows, heads, _ = q.shape
    groups = -(-heads // HEADS)
    # a torch tensor starts on a cache line, a numpy array on 16 bytes: vector loads would straddle
    queries = torch.empty((rows, groups, DIM, HEADS), dtype=torch.float32).numpy()
    gates = np.zeros((rows, groups * HEADS), np.float32)
    gates[:, :heads] = weights.numpy()
    decode = _decode_few if rows <= FEW else _decode_many
    decode(q.contiguous().view(torch.uint8).numpy(), queries)
    return queries, gates.reshape(rows, groups, HEADS)


@njit(inline="always")
def _decode_row(raw, queries, r):  # type: ignore[no-untyped-def]
    heads = raw.shape[1]
    decoded = np.empty((HEADS, DIM), np.float32)
    for g in range(queries.shape[1]):
        here = min(HEADS, heads - g * HEADS)
        decoded[here:] = 0.0
        for i in range(here):
            for d in range(0, DIM, 16):
                decode_fp8(
                    raw.ctypes.data + (r * heads + g * HEADS + i) * DIM + d,
                    decoded.ctypes.data + (i * DIM + d) * 4,
                )
        for d in range(DIM):
            for i in range(HEADS):
                queries[r, g, d, i] = decoded[i, d] * DECODED


@njit(ty.VOID(ty.U8_3, ty.F32_4), cache=True, boundscheck=False)
def _decode_few(raw, queries):  # type: ignore[no-untyped-def]
    for r in range(raw.shape[0]):
        _decode_row(raw, queries, r)


@njit(ty.VOID(ty.U8_3, ty.F32_4), parallel=True, cache=True, boundscheck=False)
def _decode_many(raw, queries):  # type: ignore[no-untyped-def]
    for r in prange(raw.shape[0]):
        _decode_row(raw, queries, r)


@njit(inline="always")
def _score_tile(queries, gates, row, keys, count, out):  # type: ignore[no-untyped-def]
    """out[:count rounded up to 8] = unscaled scores of one row against decoded keys [64, 128]."""
    groups = queries.shape[1]
    for g in range(groups):
        q = queries.ctypes.data + (row * groups + g) * DIM * HEADS * 4
        w = gates.ctypes.data + (row * groups + g) * HEADS * 4
        for i in range(0, count, KEYS):
            score_block(q, w, keys.ctypes.data + i * DIM * 4, out.ctypes.data + i * 4, g == 0)


@njit(
    ty.VOID(ty.F32_4, ty.F32_3, ty.U8_2, ty.I32_1, ty.I32_2S, ty.F32_2),
    parallel=True,
    cache=True,
    boundscheck=False,
)
def _score_paged(queries, gates, pages, lengths, table, logits):  # type: ignore[no-untyped-def]
    rows = lengths.shape[0]
    ends = np.empty(rows, np.int64)  # running count of tiles
    total = 0
    for r in range(rows):
        total += (lengths[r] + PAGE - 1) // PAGE
        ends[r] = total
    for piece in prange(PIECES):
        keys = np.empty((PAGE, DIM), np.float32)
        scores = np.empty(PAGE, np.float32)
        row = 0
        for tile in range(piece * total // PIECES, (piece + 1) * total // PIECES):
            while tile >= ends[row]:
                row += 1
            block = tile - (ends[row] - (lengths[row] + PAGE - 1) // PAGE)
            page = pages[table[row, block]]
            count = min(PAGE, lengths[row] - block * PAGE)
            scales = page[SCALE_BYTES:].view(np.float32)
            for at in range(0, -(-count // KEYS) * KEYS * DIM, 16):
                decode_fp8(page.ctypes.data + at, keys.ctypes.data + at * 4)
            _score_tile(queries, gates, row, keys, count, scores)
            for i in range(count):
                logits[row, block * PAGE + i] = scores[i] * (scales[i] * DECODED)


@njit(
    ty.VOID(ty.F32_4, ty.F32_3, ty.U8_2, ty.F32_1, ty.I32_1, ty.I32_1, ty.F32_2),
    parallel=True,
    cache=True,
    boundscheck=False,
)
def _score_ragged(queries, gates, raw, scales, starts, ends, logits):  # type: ignore[no-untyped-def]
    tokens = starts.shape[0]
    blocks = (raw.shape[0] + PAGE - 1) // PAGE
    stripes = (tokens + QUERY_BLOCK - 1) // QUERY_BLOCK
    for task in prange(stripes * blocks):
        first = (task // blocks) * QUERY_BLOCK
        last = min(first + QUERY_BLOCK, tokens)
        base = (task % blocks) * PAGE
        top = min(base + PAGE, raw.shape[0])
        wanted = False
        for t in range(first, last):
            wanted |= starts[t] < top and ends[t] > base
        if not wanted:
            continue
        keys = np.empty((PAGE, DIM), np.float32)
        scores = np.empty(PAGE, np.float32)
        for at in range(0, (top - base) * DIM, 16):
            decode_fp8(raw.ctypes.data + base * DIM + at, keys.ctypes.data + at * 4)
        # rows past the last key are computed with the block but never stored
        keys[top - base :] = 0.0
        for t in range(first, last):
            low, high = max(starts[t], base), min(ends[t], top)
            if low < high:
                _score_tile(queries, gates, t, keys, high - base, scores)
                for c in range(low, high):
                    logits[t, c] = scores[c - base] * (scales[c] * DECODED)
