"""V4's attention: one key, which is also the value, for all heads; two caches; a sink a head.

A query attends to slots of the sliding-window cache and of a compressed cache. The sink is a logit
without a value: it only takes weight away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numba import njit, prange

from sglang_spin.cpu.kernels import types as ty
from sglang_spin.cpu.kernels.softmax import softmax
from sglang_spin.cpu.kernels.v4.latent_rows import DIM, read_rows
from sglang_spin.cpu.kernels.vector_mla import HEADS, STEP, WIDTH, dot_heads, mix_rows

if TYPE_CHECKING:
    from torch import Tensor


class Selected(NamedTuple):
    """Slots of one cache that queries attend to.

    pages: uint8 [pages, bytes], see latent_rows; page_size in slots; slots int32 [tokens, n];
    counts int32 [tokens]: only the first counts[t] slots count, and of those the non-negative ones.
    """

    pages: Tensor
    page_size: int
    slots: Tensor
    counts: Tensor


def sparse_mqa(q: Tensor, caches: list[Selected], scale: float, sinks: Tensor) -> Tensor:
    """Softmax over scale * (q . row) and the sink, weighted sum of the rows.

    q [tokens, heads, 512]; sinks f32 [heads]. Rows are taken in the order of `caches` and of their
    slots, in fp32, so a token's output depends on nothing else. Returns f32 [tokens, heads, 512];
    a token without slots gets zeros.
    """
    tokens, heads = q.shape[:2]
    padded = -(-heads // HEADS) * HEADS
    queries = torch.zeros((tokens, padded, DIM), dtype=torch.float32)
    queries[:, :heads] = q
    drains = torch.zeros(padded, dtype=torch.float32)
    drains[:heads] = sinks[:heads]
    rows, local, first = [], [], 0
    for cache in caches:
        valid = torch.arange(cache.slots.shape[1]) < cache.counts[:, None]
        wanted = torch.where(valid, cache.slots, -1)
        used, index = _compact(wanted.contiguous(), cache.pages.shape[0] * cache.page_size)
        rows.append(read_rows(cache.pages, used, cache.page_size))
        local.append(torch.where(index >= 0, index + first, -1))
        first += used.shape[0]
    out = torch.empty((tokens, padded, DIM), dtype=torch.float32)
    _attend(
        queries.numpy(),
        torch.cat(rows).view(torch.uint16).numpy(),
        torch.cat(local, 1).numpy(),
        np.float32(scale),
        drains.numpy(),
        out.numpy(),
    )
    return out[:, :heads]


def _compact(slots: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """The distinct non-negative slots, ascending, and each slot's place among them (or -1)."""
    place = np.full(bound, -1, np.int32)
    index = np.empty(slots.shape, np.int32)
    count = _number(slots.numpy(), place, index)
    used = np.flatnonzero(place >= 0).astype(np.int32)
    assert count == len(used)
    return torch.from_numpy(used), torch.from_numpy(index)


@njit(ty.I64(ty.I32_2, ty.I32_1, ty.I32_2), cache=True, boundscheck=False)
def _number(slots, place, index):  # type: ignore[no-untyped-def]
    for t in range(slots.shape[0]):
        for i in range(slots.shape[1]):
            if slots[t, i] >= 0:
                place[slots[t, i]] = 0
    count = 0
    for slot in range(place.shape[0]):
        if place[slot] == 0:
            place[slot] = count
            count += 1
    for t in range(slots.shape[0]):
        for i in range(slots.shape[1]):
            index[t, i] = place[slots[t, i]] if slots[t, i] >= 0 else -1
    return count


@njit(
    ty.VOID(ty.F32_3, ty.U16_2, ty.I32_2, ty.F32, ty.F32_1, ty.F32_3),
    parallel=True,
    cache=True,
    boundscheck=False,
)
def _attend(queries, rows, index, scale, sinks, out):  # type: ignore[no-untyped-def]
    tokens, heads = queries.shape[:2]
    width = index.shape[1]
    for t in prange(tokens):
        address = np.empty(width, np.int64)
        n = 0
        for i in range(width):
            if index[t, i] >= 0:
                address[n] = rows.ctypes.data + np.int64(index[t, i]) * DIM * 2
                n += 1
        if n == 0:
            out[t] = 0.0
            continue
        p = np.zeros((HEADS, width), np.float32)
        for h in range(0, heads, HEADS):
            q = queries.ctypes.data + (t * heads + h) * DIM * 4
            target = out.ctypes.data + (t * heads + h) * DIM * 4
            p[:] = 0.0
            for i in range(n):
                dot_heads(q, DIM * 4, address[i], DIM // STEP, p.ctypes.data + i * 4, width * 4)
            for j in range(HEADS):
                softmax(p[j, :n], scale, sinks[h + j])
            for d in range(0, DIM, WIDTH):
                mix_rows(
                    p.ctypes.data, width * 4, address.ctypes.data, n, d * 2, target + d * 4, DIM * 4
                )
