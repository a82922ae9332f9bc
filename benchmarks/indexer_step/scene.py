"""The tensors of a decode step: caches, queries and page tables of long-running requests."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.indexer_step.sizes import KEY_POOL, PAGE_BYTES, Size
from sglang_spin.core.block import BLOCK

DIM = 128
PART = 1 << 16  # pages filled in one call
SPREAD = 0.5  # of the logarithm of a page's importance: some blocks matter far more than most


class Scene:
    """One batch. Every layer and row has pages of its own, so no read is served by a cache.

    q: float8_e4m3fn [layers, rows, heads, 128]. weights: fp32 [layers, rows, heads]. caches: per
    layer uint8 [1 + rows * blocks, 8448], page 0 being padding. table: int32 [rows, blocks], the
    pages of a row anywhere in the cache. rows: int64 [rows], the request rows, 0 not among them.
    """

    def __init__(self, size: Size, device: torch.device, seed: int = 0) -> None:
        self.size, self.device = size, device
        self.rng = torch.Generator(device).manual_seed(seed)
        shape = (size.layers, size.batch, size.model.index_heads)
        self.q = self._normal(*shape, DIM).to(torch.float8_e4m3fn)
        self.weights = self._normal(*shape) + 0.5
        pages = size.batch * size.blocks
        pool = self._pool()
        self.caches = [self._cache(pool, pages) for _ in range(size.layers)]
        order = torch.randperm(pages, generator=self.rng, device=device).int() + 1
        self.table = order.view(size.batch, size.blocks)
        self.rows = torch.arange(1, size.batch + 1, device=device)
        self.first_length = (size.blocks - 1) * BLOCK

    def lengths(self) -> Tensor:
        """int32 [rows]; a step adds one, and up to 63 steps stay within the newest block."""
        shape = (self.size.batch,)
        return torch.full(shape, self.first_length, dtype=torch.int32, device=self.device)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.rng, device=self.device)

    def _pool(self) -> Tensor:
        """KEY_POOL pages of normal keys; scales differ between pages and between their entries."""
        keys = self._normal(KEY_POOL, BLOCK * DIM).to(torch.float8_e4m3fn)
        scales = torch.exp(SPREAD * (self._normal(KEY_POOL, 1) + self._normal(KEY_POOL, BLOCK)))
        return torch.cat((keys.view(torch.uint8), scales.view(torch.uint8)), 1)

    def _cache(self, pool: Tensor, pages: int) -> Tensor:
        cache = torch.empty((pages + 1, PAGE_BYTES), dtype=torch.uint8, device=self.device)
        picks = torch.randint(KEY_POOL, (pages + 1,), generator=self.rng, device=self.device)
        # in parts: one call's offsets may not fit 32 bits
        for start in range(0, pages + 1, PART):
            chosen = picks[start : start + PART]
            torch.index_select(pool, 0, chosen, out=cache[start : start + PART])
        return cache
