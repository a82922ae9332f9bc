"""Slot-level history, as SPIN was published: V per slot, D per distance, best slot per block."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SCORE_LIMIT, SUSPECT
from sglang_spin.core.budget import block_count

_NAN = float("nan")


class SlotHistory:
    """64 times the state of BlockHistory; the baseline that it is compared with.

    State per layer, row and slot: V, D, stash fp32; per block: whether the last step scored it.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        blocks: int,
        *,
        alpha: float = 0.5,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, rows, blocks * BLOCK)
        self.vertical = torch.full(shape, _NAN, device=device)
        self.distance = torch.full(shape, _NAN, device=device)
        self.stash = torch.full(shape, _NAN, device=device)
        self.kept = torch.zeros(layers, rows, blocks, dtype=torch.bool, device=device)
        self.alpha = alpha

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.vertical, self.distance, self.stash, self.kept))

    def open(self, rows: Tensor) -> None:
        for tensor in (self.vertical, self.distance, self.stash):
            tensor.index_fill_(1, rows, _NAN)
        self.kept.index_fill_(1, rows, 0)

    def fold(self, rows: Tensor, accepted: Tensor, lengths: Tensor, width: int) -> None:
        slots = width * BLOCK
        slot = torch.arange(slots, device=rows.device)
        live = accepted[:, None] & (slot < lengths[:, None])
        seen = self.stash[:, rows, :slots]
        scored = self.kept[:, rows, :width].repeat_interleave(BLOCK, -1) & live
        v = self.vertical[:, rows, :slots]
        self.vertical[:, rows, :slots] = torch.where(scored, self._average(v, seen), v)
        mirror = (lengths[:, None].long() - 1 - slot).clamp(0, slots - 1).expand(scored.shape)
        scored = scored.gather(-1, mirror) & live
        d = self.distance[:, rows, :slots]
        average = self._average(d, seen.gather(-1, mirror))
        self.distance[:, rows, :slots] = torch.where(scored, average, d)

    def seed(self, rows: Tensor, prior: Tensor) -> None:
        # the prior holds one value per block: its slots start from it together
        slots = prior.shape[-1] * BLOCK
        spread_out = prior.repeat_interleave(BLOCK, -1)
        v = self.vertical[:, rows, :slots]
        self.vertical[:, rows, :slots] = torch.where(spread_out.isnan(), v, spread_out)

    def predict(
        self, rows: Tensor, lengths: Tensor, width: int, last: Tensor | None = None
    ) -> Tensor:
        if last is not None:
            raise NotImplementedError("slot-level history has no verify step")
        slots = width * BLOCK
        slot = torch.arange(slots, device=rows.device)
        v = self.vertical[:, rows, :slots]
        mirror = (lengths[:, None].long() - 1 - slot).clamp(min=0).expand(v.shape)
        d = self.distance[:, rows, :slots].gather(-1, mirror)
        return _pool(torch.where((v < SUSPECT) & (d < SUSPECT), (v + d) * 0.5, v))

    def skipped(self, rows: Tensor, width: int) -> Tensor:
        return ~self.kept[:, rows, :width]

    def mark(self, rows: Tensor, kept: Tensor, valid: Tensor) -> None:  # noqa: ARG002
        self.kept[:, rows, : kept.shape[-1]] = kept

    def observe(
        self,
        layer: int,
        rows: Tensor,
        logits: Tensor,
        blocks: Tensor,
        lengths: Tensor,
        draft: int = 0,
    ) -> None:
        if draft:
            raise NotImplementedError("slot-level history has no verify step")
        n, width = blocks.shape
        column = torch.arange(width, device=rows.device)
        spill = self.kept.shape[-1]
        inside = column < block_count(lengths)[:, None]
        target = torch.where(inside, blocks, spill).long()[..., None].expand(n, width, BLOCK)
        slot = torch.arange(width * BLOCK, device=rows.device)
        used = logits[:, : width * BLOCK]
        used = torch.where(used.abs() <= SCORE_LIMIT, used, SUSPECT)
        used = used.masked_fill(slot >= lengths[:, None], _NAN)
        values = torch.full((n, spill + 1, BLOCK), _NAN, device=rows.device)
        values.scatter_(1, target, used.view(n, width, BLOCK))
        self.stash[layer, rows] = values[:, :spill].reshape(n, -1)

    def block_values(self, rows: Tensor, width: int) -> Tensor:
        return _pool(self.vertical[:, rows, : width * BLOCK])

    def _average(self, old: Tensor, new: Tensor) -> Tensor:
        both = (old < SUSPECT) & (new < SUSPECT)
        mean = old * (1 - self.alpha) + new * self.alpha
        return torch.where(both, mean, torch.where(old < SUSPECT, old, new))


def _pool(slots: Tensor) -> Tensor:
    """Best known slot of each block, NaN where none is. fp32 [..., b * BLOCK] to [..., b]."""
    grouped = slots.reshape(*slots.shape[:-1], -1, BLOCK)
    best = grouped.masked_fill(grouped.isnan(), float("-inf")).amax(-1)
    return best.masked_fill(best == float("-inf"), _NAN)
