"""Block-level history: a vertical and a diagonal moving average per block, and its age.

12 bytes per layer, row and block. A block is cold until it is first scored or seeded. All layers
keep a cold block and so score it in the same step, hence coldness is the same in every layer; a
score that is not finite does not break that: the block becomes suspect, not cold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import block_count

AGE_CAP = 50  # staleness stops growing here: measured traces gain nothing beyond it
SCORE_LIMIT = 1e30  # larger magnitudes are not trusted as scores
SUSPECT = 2e30  # stands for a score that was not trusted: kept first, kept out of every average

_NAN = float("nan")
NONE = 0x7FC00000  # float32 NaN bits; with an age in the low bits: not scored for so many steps
AGE_BITS = 63
LEVELS = 32768  # a power of two: scaling by it rounds once, on every device
LEAST_EXTENT = 1e-30  # below it the scale overflows


class BlockHistory:
    """V[b] follows block b, D[d] follows the block d before the newest one; both of block maxima.

    `recent` is one int32 per block: the bits of the score observed in the last step, or else a NaN
    that carries the age. `diagonal=False` predicts from V alone; `alpha=1` makes V the last score.
    `stashes`: rows of a request in one step whose scores are kept, in `stash`, whose first part is
    `recent`; each further one costs 4 bytes per layer, row and block.
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
        stashes: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (layers, rows, blocks)
        self.vertical = torch.full(shape, _NAN, device=device)
        self.distance = torch.full(shape, _NAN, device=device)
        self.stash = torch.full((stashes, *shape), NONE, dtype=torch.int32, device=device)
        self.recent = self.stash[0].fill_(NONE | AGE_CAP)
        self.alpha, self.staleness, self.diagonal = alpha, staleness, diagonal

    @property
    def nbytes(self) -> int:
        return self.vertical.nbytes + self.distance.nbytes + self.stash.nbytes

    def open(self, rows: Tensor) -> None:
        self.vertical.index_fill_(1, rows, _NAN)
        self.distance.index_fill_(1, rows, _NAN)
        self.recent.index_fill_(1, rows, NONE | AGE_CAP)

    def fold(
        self,
        rows: Tensor,
        accepted: Tensor,
        lengths: Tensor,
        width: int,
        seen: Tensor | None = None,
    ) -> None:
        block = torch.arange(width, device=rows.device)
        count = block_count(lengths)[:, None]
        live = accepted[:, None] & (block < count)
        if seen is None:
            seen = self.recent[:, rows, :width].view(torch.float32)
        scored = live & ~seen.isnan()
        v = self.vertical[:, rows, :width]
        self.vertical[:, rows, :width] = torch.where(scored, self._average(v, seen), v)
        if self.diagonal:
            mirror = (count - 1 - block).clamp(0, width - 1).expand(scored.shape)
            scored = live & scored.gather(-1, mirror)
            d = self.distance[:, rows, :width]
            average = self._average(d, seen.gather(-1, mirror))
            self.distance[:, rows, :width] = torch.where(scored, average, d)

    def seed(self, rows: Tensor, prior: Tensor) -> None:
        width = prior.shape[-1]
        known = ~prior.isnan()
        v, recent = self.vertical[:, rows, :width], self.recent[:, rows, :width]
        self.vertical[:, rows, :width] = torch.where(known, prior, v)
        # as good as just scored: their staleness starts counting now
        self.recent[:, rows, :width] = recent.masked_fill(known, NONE)

    def predict(
        self, rows: Tensor, lengths: Tensor, width: int, last: Tensor | None = None
    ) -> Tensor:
        score = self.vertical[:, rows, :width]
        trusted = score < SUSPECT  # false for NaN too
        if self.diagonal:
            average, first = score, block_count(lengths)
            score = self._with_distance(rows, average, first)
            if last is not None:
                # only where the rows straddle a page does the last see another distance
                later = self._with_distance(rows, average, block_count(last))
                seen = torch.arange(width, device=rows.device) < first[:, None]
                score = torch.where(seen, torch.maximum(score, later), later)
        if self.staleness:
            unit = spread(score.masked_fill(~trusted, _NAN)) * self.staleness
            bonus = _age(self.recent[:, rows, :width]).float().sqrt() * unit
            score = torch.where(trusted, score + bonus, score)
        return score

    def skipped(self, rows: Tensor, width: int) -> Tensor:
        return _age(self.recent[:, rows, :width]) > 0

    def mark(self, rows: Tensor, kept: Tensor, valid: Tensor) -> None:
        recent = self.recent[:, rows, : kept.shape[-1]]
        older = (_age(recent) + 1).clamp(max=AGE_CAP)
        marked = torch.where(valid, NONE | older.masked_fill(kept, 0), recent)
        self.recent[:, rows, : kept.shape[-1]] = marked

    def observe(
        self,
        layer: int,
        rows: Tensor,
        logits: Tensor,
        blocks: Tensor,
        lengths: Tensor,
        draft: int = 0,
    ) -> None:
        maxima = block_maxima(logits, blocks.shape[1], lengths)
        column = torch.arange(blocks.shape[1], device=rows.device)
        inside = column < block_count(lengths)[:, None]
        stash = self.stash[draft, layer]
        spill = stash.shape[-1]
        scores = torch.nn.functional.pad(stash[rows], (0, 1))
        target = torch.where(inside, blocks, spill).long()
        scores.scatter_(1, target, maxima.view(torch.int32))
        stash[rows] = scores[:, :spill]

    def block_values(self, rows: Tensor, width: int) -> Tensor:
        return self.vertical[:, rows, :width]

    def _with_distance(self, rows: Tensor, average: Tensor, count: Tensor) -> Tensor:
        """Mean of V and of D at each block's distance, in a row of `count` blocks; V without D."""
        block = torch.arange(average.shape[-1], device=rows.device)
        mirror = (count[:, None] - 1 - block).clamp(min=0)
        d = self.distance[:, rows, : average.shape[-1]].gather(-1, mirror.expand(average.shape))
        return torch.where((average < SUSPECT) & (d < SUSPECT), (average + d) * 0.5, average)

    def _average(self, old: Tensor, new: Tensor) -> Tensor:
        both = (old < SUSPECT) & (new < SUSPECT)
        mean = old * (1 - self.alpha) + new * self.alpha
        # an untrusted score never replaces a trusted average; anything replaces the other two kinds
        return torch.where(both, mean, torch.where(old < SUSPECT, old, new))


def block_maxima(logits: Tensor, width: int, lengths: Tensor) -> Tensor:
    """Largest logit of each compact block, columns at or past the row's length ignored.

    logits: fp32 [rows, >= width * BLOCK]; lengths: int [rows]. Returns fp32 [rows, width]: SUSPECT
    where a used logit is NaN or the maximum exceeds SCORE_LIMIT in magnitude. Blocks wholly past
    the length hold anything.
    """
    rows = logits.shape[0]
    blocks = logits[:, : width * BLOCK].view(rows, width, BLOCK)
    maxima = blocks.amax(-1)
    # only the block that holds the end of the row mixes scores and garbage; later ones are not used
    end = (lengths // BLOCK).clamp(max=width - 1).long()
    column = torch.arange(BLOCK, device=logits.device)
    last = blocks[torch.arange(rows, device=logits.device), end]
    last = last.masked_fill(column >= (lengths - end * BLOCK)[:, None], -SCORE_LIMIT).amax(-1)
    maxima.scatter_(1, end[:, None], last[:, None])
    # adding zero turns -0.0 into 0.0: the sign of a zero maximum depends on the reduction's order
    return torch.where(maxima.abs() <= SCORE_LIMIT, maxima + 0.0, SUSPECT)


def spread(score: Tensor) -> Tensor:
    """Standard deviation over the last axis, NaN entries ignored; 0 where all are equal.

    Moments of 15-bit integers, because integer sums do not depend on their order: a GPU reduction
    gives the same bits. fp32 [..., width] to fp32 [..., 1].
    """
    known = ~score.isnan()
    low = score.masked_fill(~known, float("inf")).amin(-1, keepdim=True)
    high = score.masked_fill(~known, float("-inf")).amax(-1, keepdim=True)
    extent = (high - low).clamp(min=0)
    varied = extent > LEAST_EXTENT
    scale = torch.where(varied, LEVELS / extent, 0.0)
    level = ((score - low) * scale).masked_fill(~known, 0).to(torch.int64)
    count = known.sum(-1, keepdim=True)
    first, second = level.sum(-1, keepdim=True), (level * level).sum(-1, keepdim=True)
    variance = count * second - first * first
    deviation = variance.float().sqrt() / count.clamp(min=1).float()
    return torch.where(varied, deviation * (extent / LEVELS), 0.0)


def _age(recent: Tensor) -> Tensor:
    """Steps since the last score, int32; 0 where `recent` holds a score."""
    return torch.where(recent.view(torch.float32).isnan(), recent & AGE_BITS, 0)
