"""What a server reports of SPIN's work, counted on the device without a host sync."""

from __future__ import annotations

import torch
from torch import Tensor

SCALARS = ("steps", "rows_seeded", "rows_cold", "blocks_seeded", "blocks_cold", "cold_blocks")


class Counters:
    """Totals since start, int64 on the device.

    kept, seen: blocks scored and blocks present, per layer, over the real rows of every step.
    steps: steps with at least one real row. rows_seeded, rows_cold: request starts with and without
    an inherited block. blocks_seeded, blocks_cold: the blocks of those starts (first layer).
    cold: blocks never scored, over the real rows of every step; the same in every layer.
    """

    def __init__(self, layers: int, device: torch.device | str = "cpu") -> None:
        self.kept = torch.zeros(layers, dtype=torch.int64, device=device)
        self.seen = torch.zeros(layers, dtype=torch.int64, device=device)
        self.scalars = torch.zeros(len(SCALARS), dtype=torch.int64, device=device)

    def add_step(self, live: Tensor, kept: Tensor, count: Tensor, cold: Tensor) -> None:
        """live: bool [rows]. Blocks kept: int [layers, rows]; present, never scored: int [rows]."""
        self.kept += torch.where(live, kept, 0).sum(-1)
        self.seen += torch.where(live, count, 0).sum()
        self.scalars[0] += live.any()
        self.scalars[5] += torch.where(live, cold, 0).sum()

    def add_starts(self, started: Tensor, known: Tensor, valid: Tensor) -> None:
        """started: bool [rows]; known, valid: bool [rows, width], inherited and present blocks."""
        seeded = (known & valid & started[:, None]).sum(-1)
        cold = (~known & valid & started[:, None]).sum(-1)
        warm = started & (seeded > 0)
        totals = (warm.sum(), (started & ~warm).sum(), seeded.sum(), cold.sum())
        self.scalars[1:5] += torch.stack(totals)

    def read(self) -> dict[str, object]:
        """The totals as plain Python values. Waits for the device."""
        steps, rows_seeded, rows_cold, blocks_seeded, blocks_cold, cold = self.scalars.tolist()
        kept, seen = self.kept.tolist(), self.seen.tolist()
        share = [k / s if s else 1.0 for k, s in zip(kept, seen, strict=True)]
        return {
            "steps": steps,
            "rows_seeded": rows_seeded,
            "rows_cold": rows_cold,
            "blocks_seeded": blocks_seeded,
            "blocks_cold": blocks_cold,
            "cold_blocks": cold,
            "cold_share": cold * len(seen) / sum(seen) if sum(seen) else 0.0,
            "kept_blocks": kept,
            "seen_blocks": seen,
            "kept_share": share,
            "realised_sparsity": 1 - sum(kept) / sum(seen) if sum(seen) else 0.0,
        }
