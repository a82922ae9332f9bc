"""Inputs and fp64 oracles for the CPU kernels, written from the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

PAGE = 64
DIM = 128


def generator(seed: int) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


def fp8(shape: tuple[int, ...], seed: int, spread: float = 60.0) -> Tensor:
    """Random float8_e4m3fn values, subnormals and the largest magnitude among them."""
    values = torch.randn(shape, generator=generator(seed)) * spread
    flat = values.view(-1)
    flat[::17] *= 1e-4
    flat[5::101] = 448.0
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


def index_pages(count: int, seed: int) -> Tensor:
    """uint8 [count, 64 * 132]: pages of random keys and positive scales."""
    keys = fp8((count, PAGE * DIM), seed).view(torch.uint8)
    scales = torch.rand((count, PAGE), generator=generator(seed + 1)) + 0.05
    return torch.cat([keys, scales.view(torch.uint8).view(count, -1)], 1).contiguous()


def page_keys(pages: Tensor, table_row: Tensor) -> tuple[Tensor, Tensor]:
    """fp64 keys [64 * n, 128] and scales [64 * n] of the pages a table row names."""
    chosen = pages[table_row.long()]
    keys = chosen[:, : PAGE * DIM].contiguous().view(torch.float8_e4m3fn).view(-1, DIM)
    scales = chosen[:, PAGE * DIM :].contiguous().view(torch.float32).view(-1)
    return keys.double(), scales.double()


def index_scores(q: Tensor, keys: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    """[n] = sum_h weights[h] * relu(q[h] . keys[n]) * scales[n], in fp64."""
    dots = torch.relu(keys.double() @ q.double().T)
    return (dots * weights.double()).sum(1) * scales.double()


def score_error_bound(q: Tensor, keys: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    """[n] bound on fp32 rounding: (dim + heads) additions, each off by eps of the terms' sizes."""
    dots = keys.double().abs() @ q.double().abs().T
    size = (dots * weights.double().abs()).sum(1) * scales.double()
    return size * (DIM + q.shape[0]) * torch.finfo(torch.float32).eps


def best_columns(row: Tensor, topk: int) -> list[int]:
    """The columns of the topk best, ties to the lower column, ascending."""
    order = sorted(range(len(row)), key=lambda c: (-float(row[c]), c))
    return sorted(order[:topk])
