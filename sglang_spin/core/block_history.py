"""Block-level history: a vertical and a diagonal moving average per block, and its age."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import block_count
from sglang_spin.core.select import SCORE_LIMIT

AGE_CAP = 50  # staleness stops growing here: measured traces gain nothing beyond it
_NAN = float("nan")
_LEVELS = 65535


class BlockHistory:
    """V[b] follows block b, D[d] follows the block d before the newest one; both of block maxima.

    State per layer, row and block: V, D, stash fp32 and age int8. `diagonal=False` predicts from V
    alone; `alpha=1` makes V the last observed score.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        blocks: int,
        *,
        alpha: float,
        staleness: float,
        diagonal: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, rows, blocks)
        self.vertical = torch.full(shape, _NAN, device=device)
        self.distance = torch.full(shape, _NAN, device=device)
        self.stash = torch.full(shape, _NAN, device=device)
        self.age = torch.full(shape, AGE_CAP, dtype=torch.int8, device=device)
        self.alpha, self.staleness, self.diagonal = alpha, staleness, diagonal

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.vertical, self.distance, self.stash, self.age))

    def open(self, rows: Tensor) -> None:
        for tensor in (self.vertical, self.distance, self.stash):
            tensor.index_fill_(1, rows, _NAN)
        self.age.index_fill_(1, rows, AGE_CAP)

    def fold(self, rows: Tensor, accepted: Tensor, lengths: Tensor, width: int) -> None:
        block = torch.arange(width, device=rows.device)
        count = block_count(lengths)[:, None]
        live = accepted[:, None] & (block < count)
        seen = self.stash[:, rows, :width]
        scored = (self.age[:, rows, :width] == 0) & live
        v = self.vertical[:, rows, :width]
        self.vertical[:, rows, :width] = torch.where(scored, self._average(v, seen), v)
        if self.diagonal:
            mirror = (count - 1 - block).clamp(min=0).expand(scored.shape)
            scored = scored.gather(-1, mirror) & live
            d = self.distance[:, rows, :width]
            average = self._average(d, seen.gather(-1, mirror))
            self.distance[:, rows, :width] = torch.where(scored, average, d)

    def seed(self, rows: Tensor, prior: Tensor) -> None:
        width = prior.shape[-1]
        known = ~prior.isnan()
        v, age = self.vertical[:, rows, :width], self.age[:, rows, :width]
        self.vertical[:, rows, :width] = torch.where(known, prior, v)
        # as good as just scored: their staleness starts counting now
        self.age[:, rows, :width] = age.masked_fill(known, 0)

    def predict(self, rows: Tensor, lengths: Tensor, width: int) -> Tensor:
        score = self.vertical[:, rows, :width]
        if self.diagonal:
            block = torch.arange(width, device=rows.device)
            mirror = (block_count(lengths)[:, None] - 1 - block).clamp(min=0)
            d = self.distance[:, rows, :width].gather(-1, mirror.expand(score.shape))
            score = torch.where(d.isnan(), score, (score + d) * 0.5)
        if self.staleness:
            bonus = self.age[:, rows, :width].float().sqrt() * (spread(score) * self.staleness)
            score = score + bonus
        return score

    def mark(self, rows: Tensor, kept: Tensor) -> None:
        width = kept.shape[-1]
        older = (self.age[:, rows, :width] + 1).clamp(max=AGE_CAP)
        self.age[:, rows, :width] = older.masked_fill(kept, 0)

    def observe(
        self, layer: int, rows: Tensor, logits: Tensor, blocks: Tensor, lengths: Tensor
    ) -> None:
        maxima = block_maxima(logits, blocks.shape[1], lengths)
        column = torch.arange(blocks.shape[1], device=rows.device)
        spill = self.stash.shape[-1]
        inside = column < block_count(lengths)[:, None]
        target = torch.where(inside, blocks, spill)
        values = torch.full((rows.shape[0], spill + 1), _NAN, device=rows.device)
        self.stash[layer, rows] = values.scatter_(1, target, maxima)[:, :spill]

    def block_values(self, rows: Tensor, width: int) -> Tensor:
        return self.vertical[:, rows, :width]

    def _average(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.where(old.isnan(), new, old * (1 - self.alpha) + new * self.alpha)


def block_maxima(logits: Tensor, width: int, lengths: Tensor) -> Tensor:
    """Largest logit of each compact block, columns at or past the row's length ignored.

    logits: fp32 [rows, >= width * BLOCK]; lengths: int [rows]. Returns fp32 [rows, width]: NaN if a
    scored logit is NaN (such a block counts as never scored), else within +-SCORE_LIMIT.
    """
    rows = logits.shape[0]
    column = torch.arange(width * BLOCK, device=logits.device)
    used = logits[:, : width * BLOCK].masked_fill(column >= lengths[:, None], -SCORE_LIMIT)
    return used.view(rows, width, BLOCK).amax(-1).clamp(-SCORE_LIMIT, SCORE_LIMIT)


def spread(score: Tensor) -> Tensor:
    """Standard deviation over the last axis, NaN entries ignored; 0 where all are equal.

    Moments of 16-bit integers, because integer sums do not depend on their order: a GPU reduction
    gives the same bits. fp32 [..., width] to fp32 [..., 1].
    """
    known = ~score.isnan()
    low = score.masked_fill(~known, float("inf")).amin(-1, keepdim=True)
    high = score.masked_fill(~known, float("-inf")).amax(-1, keepdim=True)
    extent = (high - low).clamp(min=0)
    scale = torch.where(extent > 0, _LEVELS / extent, 0.0)
    level = ((score - low) * scale).masked_fill(~known, 0).to(torch.int64)
    count = known.sum(-1, keepdim=True)
    first, second = level.sum(-1, keepdim=True), (level * level).sum(-1, keepdim=True)
    variance = count * second - first * first
    deviation = variance.float().sqrt() / count.clamp(min=1).float()
    return torch.where(extent > 0, deviation * (extent / _LEVELS), 0.0)
