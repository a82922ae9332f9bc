"""Miss audit: how much of the true top-k the prediction would have skipped, measured while serving.

Every `every`-th step of a row keeps all its blocks. What the prediction would have kept is noted,
and once a layer's scores are known its top-k is found among all entries: the share of it that lies
in blocks the prediction would have skipped is the miss of that layer, row and step.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK

KEPT = 1  # the prediction would have kept the block
RETURNED = 2  # and chose it although the step before had skipped it: an exploration
TALLIES = ("audits", "entries", "missed", "returned", "useful")
BINS = 64
_GOLDEN = 0.618


class Flags(NamedTuple):
    """What begin() leaves for the audits of a step.

    audited: bool [rows], rows that are scored in full only to be measured; at most one row of a
    request. blocks: uint8 [layers, rows, width], KEPT and RETURNED per logical block of an audited
    row, anything elsewhere.
    """

    audited: Tensor
    blocks: Tensor


class Audit:
    """Which rows are audited when, and what the audits found, per layer and request row.

    tallies: int64 [layers, rows, 5], totals since start by TALLIES: audits; top-k entries looked
    at, and those in blocks that would have been skipped; blocks that returned, and those of them
    that held a top-k entry. histogram: int32 [layers, rows, BINS], audits by missed entries. A cell
    is written by one audit a step, so neither a sum over rows nor an atomic is needed in a step.
    """

    def __init__(
        self, layers: int, rows: int, every: int, topk: int, device: torch.device | str = "cpu"
    ) -> None:
        self.every, self.stride, self.topk = every, stagger(every), topk
        self.tallies = torch.zeros(layers, rows, len(TALLIES), dtype=torch.int64, device=device)
        self.histogram = torch.zeros(layers, rows, BINS, dtype=torch.int32, device=device)
        self.edges = torch.tensor(missed_edges(topk), dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """296 bytes per layer and row, and the edges."""
        return self.tallies.nbytes + self.histogram.nbytes + self.edges.nbytes

    def due(self, rows: Tensor, generation: Tensor, step: Tensor) -> Tensor:
        """Whether a row's turn has come. All int [n]; returns bool [n].

        Requests of one row take other turns, and so do rows that start together.
        """
        turn = (rows + generation) % self.every * self.stride
        return (turn + step) % self.every == 0

    def add(self, layer: int, rows: Tensor, logits: Tensor, lengths: Tensor, flags: Flags) -> None:
        """Audit one layer.

        rows: int64 [n]; lengths: int [n], those of the scored columns, which for an audited row are
        all its entries. logits: fp32 [n, >= width * 64], unread past the length.
        """
        blocks = flags.blocks[layer]
        n, width = blocks.shape
        best = _best(logits[:, : width * BLOCK], lengths, self.topk).view(n, width, BLOCK)
        missed = (best & (blocks & KEPT == 0)[..., None]).sum((1, 2))
        inside = torch.arange(width, device=rows.device) < ((lengths + BLOCK - 1) // BLOCK)[:, None]
        returned = (blocks & RETURNED != 0) & inside
        useful = (returned & best.any(-1)).sum(-1)
        entries = torch.full_like(missed, self.topk)
        found = (torch.ones_like(missed), entries, missed, returned.sum(-1), useful)
        weight = flags.audited.long()
        values = torch.stack(found, -1) * weight[:, None]
        # rows that are not audited add nothing, to the row that nobody owns
        cell = torch.where(flags.audited, rows, 0)
        self.tallies[layer].index_add_(0, cell, values)
        column = (missed[:, None] >= self.edges).sum(-1) - 1
        self.histogram[layer].index_put_((cell, column), weight.int(), accumulate=True)


def stagger(every: int) -> int:
    """Steps between the turns of neighbouring rows: near the golden section, all turns taken."""
    stride = max(1, round(every * _GOLDEN))
    while gcd(stride, every) != 1:
        stride += 1
    return stride


def missed_edges(topk: int) -> list[int]:
    """Fewest missed entries of each histogram bin: 0, 1, then growing evenly in ratio to topk."""
    ratio = topk ** (1 / (BINS - 2))
    return [0, *(round(ratio**i) for i in range(BINS - 1))]


def quantile(histogram: list[int], share: float, topk: int) -> float:
    """Miss that `share` of the audits do not exceed, from counts per bin; 0 without an audit.

    The largest miss of the bin in question, so never less than the true quantile; bins are at most
    about an eighth wide.
    """
    total, reached = sum(histogram), 0
    edges = missed_edges(topk)
    for column, count in enumerate(histogram):
        reached += count
        if reached and reached >= share * total:
            later = [edge for edge in edges[column + 1 :] if edge > edges[column]]
            return (later[0] - 1 if later else topk) / topk
    return 0.0


def _best(logits: Tensor, lengths: Tensor, topk: int) -> Tensor:
    """Top-k entries, bool like logits: ties go to the lower position, a NaN counts as lowest."""
    n, entries = logits.shape
    position = torch.arange(entries, device=logits.device)
    valid = position < lengths[:, None]
    keys = logits.masked_fill(logits.isnan(), float("-inf"))
    # two stable sorts: by score, then the valid ones before the others
    by_score = keys.sort(dim=-1, descending=True, stable=True).indices
    place = valid.gather(-1, by_score).sort(dim=-1, descending=True, stable=True).indices
    order = by_score.gather(-1, place)
    taken = position < lengths.clamp(max=topk)[:, None]
    return torch.zeros(n, entries, dtype=torch.bool, device=logits.device).scatter_(
        -1, order, taken
    )
