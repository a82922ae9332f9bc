"""Writing and reading index keys in their paged layout: 64 x 128 fp8 bytes, then 64 fp32 scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def write_index_keys(
    pages: Tensor, slots: Tensor, keys: Tensor, scales: Tensor, page_size: int
) -> None:
    """Store keys float8_e4m3fn [n, dim] and scales f32 [n] (or [n, 1]) at token slots [n].

    pages uint8 [pages, page_size * (dim + 4)], changed in place.
    """
    dim = keys.shape[-1]
    count = pages.shape[0]
    page, entry = slots.long() // page_size, slots.long() % page_size
    split = page_size * dim
    bytes_ = keys.contiguous().view(torch.uint8).view(-1, dim)
    scale_bytes = scales.float().reshape(-1, 1).contiguous().view(torch.uint8)
    pages[:, :split].view(count, page_size, dim)[page, entry] = bytes_
    pages[:, split:].view(count, page_size, 4)[page, entry] = scale_bytes


def read_index_keys(
    pages: Tensor, table: Tensor, lengths: Tensor, page_size: int, dim: int
) -> tuple[Tensor, Tensor]:
    """Gather the keys of several requests into one run, request after request.

    table int [requests, pages]; lengths int [requests], in tokens.
    Returns uint8 [sum of lengths, dim] and the scales' bytes uint8 [sum of lengths, 4].
    """
    count = pages.shape[0]
    split = page_size * dim
    keys = pages[:, :split].view(count, page_size, dim)
    scales = pages[:, split:].view(count, page_size, 4)
    rows = [
        row[: -(-length // page_size)].long()
        for row, length in zip(table, lengths.tolist(), strict=True)
    ]
    sizes = lengths.tolist()
    return (
        torch.cat([keys[r].view(-1, dim)[:n] for r, n in zip(rows, sizes, strict=True)]),
        torch.cat([scales[r].view(-1, 4)[:n] for r, n in zip(rows, sizes, strict=True)]),
    )
