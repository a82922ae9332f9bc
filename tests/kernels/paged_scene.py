"""Inputs of the paged scorer, quantised in torch (the interpreter cannot), and an fp64 oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.kernels.paged_logits import paged_logits
from sglang_spin.kernels.paged_logits.layout import DIM, FP4, FP8, PageFormat

UNTOUCHED = -12345.0  # what outputs hold before a call
NOWHERE = 2**31 - 1  # a page id that no buffer holds: reading it would end the process
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@dataclass
class Scene:
    """Arguments of `paged_logits`; page 0 is padding, the pages of a row lie anywhere."""

    q: Tensor
    q_scales: Tensor | None
    cache: Tensor
    weights: Tensor
    lengths: Tensor
    page_table: Tensor

    @property
    def next_n(self) -> int:
        return self.q.shape[0] // self.page_table.shape[0]

    @property
    def page(self) -> PageFormat:
        return FP8 if self.q_scales is None else FP4

    def run(self, impl: str, maxima: bool = False, width: int | None = None) -> Outputs:
        rows, blocks = self.q.shape[0], self.page_table.shape[1]
        width = blocks * BLOCK if width is None else width
        logits = torch.full((rows, width), UNTOUCHED)
        best = torch.full((rows, -(-width // BLOCK)), UNTOUCHED) if maxima else None
        paged_logits(
            self.q,
            self.cache,
            self.weights,
            self.lengths,
            self.page_table,
            q_scales=self.q_scales,
            out=logits,
            maxima=best,
            impl=impl,  # type: ignore[arg-type]
        )
        return Outputs(logits, best)

    def oracle(self) -> tuple[np.ndarray, np.ndarray]:
        """fp64 logits and their magnitudes (all terms taken absolute), zero past the lengths."""
        shape = (self.q.shape[0], self.page_table.shape[1] * BLOCK)
        exact, magnitude = np.zeros(shape), np.zeros(shape)
        for r, length in enumerate(self.lengths.tolist()):
            q, w = self._query(r), self.weights[r].double().numpy()
            for j in range(0, length, BLOCK):
                k, scale = self._page(int(self.page_table[r // self.next_n, j // BLOCK]))
                n = min(BLOCK, length - j)
                products = np.maximum(q @ k.T, 0)
                exact[r, j : j + n] = ((w @ products) * scale)[:n]
                absolute = np.abs(w) @ (np.abs(q) @ np.abs(k).T)
                magnitude[r, j : j + n] = (absolute * scale)[:n]
        return exact, magnitude

    def inside(self) -> Tensor:
        return torch.arange(self.page_table.shape[1] * BLOCK) < self.lengths[:, None]

    def _query(self, row: int) -> np.ndarray:
        if self.q_scales is None:
            return self.q[row].double().numpy()
        return _decode_fp4(self.q[row].numpy(), self.q_scales[row].numpy())

    def _page(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        raw = self.cache[page].clone()
        split = self.page.scales_at
        if self.page is FP8:
            keys = raw[:split].view(torch.float8_e4m3fn).double().view(BLOCK, DIM)
            return keys.numpy(), raw[split:].view(torch.float32).double().numpy()
        packed, scales = raw[:split].view(BLOCK, -1), raw[split:].view(BLOCK, -1)
        return _decode_fp4(packed.numpy(), scales.numpy()), np.ones(BLOCK)


@dataclass
class Outputs:
    logits: Tensor
    maxima: Tensor | None


def make_scene(
    page: PageFormat,
    lengths: Sequence[int],
    *,
    heads: int = 16,
    next_n: int = 1,
    spare_blocks: int = 1,
    seed: int = 0,
) -> Scene:
    """One row per length; `next_n` consecutive rows share a table, which ends in NOWHERE."""
    rng = torch.Generator().manual_seed(seed)
    rows, tables = len(lengths), len(lengths) // next_n
    blocks = [-(-max(lengths[t * next_n : (t + 1) * next_n]) // BLOCK) for t in range(tables)]
    cache = random_cache(page, 1 + sum(blocks), rng)
    table = torch.full((tables, max([*blocks, 0]) + spare_blocks), NOWHERE, dtype=torch.int32)
    free = (1 + torch.randperm(sum(blocks), generator=rng)).int()
    for t, count in enumerate(blocks):
        taken = sum(blocks[:t])
        table[t, :count] = free[taken : taken + count]
    q, q_scales = _random_query(page, rows, heads, rng)
    weights = torch.randn(rows, heads, generator=rng)
    return Scene(q, q_scales, cache, weights, torch.tensor(lengths, dtype=torch.int32), table)


def random_cache(page: PageFormat, pages: int, rng: torch.Generator) -> Tensor:
    """Index-K pages whose entries all have their own scale."""
    if page is not FP8:
        cache = torch.randint(0, 256, (pages, page.page_bytes), generator=rng, dtype=torch.uint8)
        cache[:, page.scales_at :] %= 12
        cache[:, page.scales_at :] += 121  # scales 2**-6 to 2**5
        return cache
    keys = torch.randn(pages, BLOCK * DIM, generator=rng) * 100
    scales = torch.exp(torch.randn(pages, BLOCK, generator=rng)) / 100
    keys8 = keys.clamp(-448, 448).to(torch.float8_e4m3fn)
    return torch.cat((keys8.view(torch.uint8), scales.view(torch.uint8)), 1)


def pad_heads(scene: Scene, heads: int) -> Scene:
    """The same scores from more heads: queries and weights of zero."""
    extra = heads - scene.q.shape[1]
    q = torch.nn.functional.pad(scene.q.view(torch.uint8), (0, 0, 0, extra))
    weights = torch.nn.functional.pad(scene.weights, (0, extra))
    return replace(scene, q=q.view(scene.q.dtype), weights=weights)


def _random_query(
    page: PageFormat, rows: int, heads: int, rng: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    if page is FP8:
        q = torch.randn(rows, heads, DIM, generator=rng) * 20
        return q.to(torch.float8_e4m3fn), None
    packed = torch.randint(0, 256, (rows, heads, DIM // 2), generator=rng, dtype=torch.uint8)
    scales = torch.randint(121, 133, (rows, heads, 4), generator=rng, dtype=torch.uint8)
    return packed, scales


def _decode_fp4(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    values = np.empty((packed.shape[0], DIM))
    values[:, 0::2], values[:, 1::2] = _E2M1[packed & 15], _E2M1[packed >> 4]
    return values * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)
