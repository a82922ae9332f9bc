"""What is measured: shapes, the bytes a step must move, and the memory a measurement needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_spin.core.block import BLOCK
from sglang_spin.lab.cost import operators, traffic
from sglang_spin.lab.cost.models import ModelShape
from sglang_spin.lab.cost.operators import Observe

PAGE_BYTES = 64 * 132  # an index-K page: 64 keys of 128 fp8 values, 64 fp32 scales
KEY_POOL = 512  # different pages that the caches are filled from
# fp32 copies of one row's keys, and two products of 64 heads, while the torch scorer works
TORCH_SCORER_ENTRY_BYTES = 132 + 2 * 512 + 2 * 256


@dataclass(frozen=True)
class Size:
    """Equally long rows in decode. context: tokens of a row; model: with the layers measured."""

    model: ModelShape
    batch: int
    context: int

    @property
    def layers(self) -> int:
        return self.model.indexer_layers

    @property
    def entries(self) -> int:
        """Index entries of a row."""
        return traffic.entries(self.model, self.context)

    @property
    def blocks(self) -> int:
        """Blocks, which are index-K pages, of a row."""
        return traffic.blocks(self.model, self.context)

    def kept(self, sparsity: float) -> int:
        """Blocks of a row that a steady step scores."""
        return traffic.kept_blocks(self.model, self.context, sparsity)

    def __str__(self) -> str:
        return f"{self.batch} rows x {self.context:,} tokens ({self.blocks:,} pages)"


@dataclass(frozen=True)
class Floor:
    """Least bytes of a step over all layers and rows.

    dense, spin: scoring and top-k of all and of the kept entries. own: what SPIN adds to `spin`.
    scorer: the scorer's part of `spin`.

    scoring   entries * (132 read + 4 written)     an index entry, its logit
    top-k     entries * 4 read + index_topk * 4 written
    own       blocks * (12 read + 12 written + 4 read) + kept * 8 written    state, table, pages
              + kept entries * 4 read + kept * (4 read + 4 written)          observe, of its own
              or kept * (4 read + 4 written)                                 observe, fused
    each times layers and rows. The formulas are the cost model's (sglang_spin.lab.cost).
    """

    dense: float
    spin: float
    own: float
    scorer: float


def floor(size: Size, kept: int, observe: Observe) -> Floor:
    """The floor of a step that keeps `kept` blocks of each row."""
    model, load = size.model, traffic.Load(size.context, size.batch, tp=1, index_format="fp8")
    scorer = traffic.scoring(model, load, kept).moved
    own = (
        operators.fold_select(model, load).moved
        + operators.page_gather(model, load, kept).moved
        + operators.observe(model, load, kept, observe).moved
    )
    return Floor(
        dense=_scored(size, load, size.blocks),
        spin=_scored(size, load, kept),
        own=own,
        scorer=scorer,
    )


def _scored(size: Size, load: traffic.Load, kept: int) -> float:
    scoring, topk = (part(size.model, load, kept) for part in (traffic.scoring, traffic.topk))
    return scoring.moved + topk.moved


def memory_bytes(size: Size, sparsities: int) -> int:
    """Bytes held at the peak: caches, logits, and per sparsity a state and a plan."""
    lines = size.layers * size.batch * size.blocks
    caches = (size.layers * (size.batch * size.blocks + 1) + KEY_POOL) * PAGE_BYTES
    logits = 2 * size.batch * size.blocks * BLOCK * 4
    # state 12 bytes, plan 8, prior 4, and the torch form's temporaries of about ten int64
    states = sparsities * lines * (12 + 8 + 4) + lines * 80
    return caches + logits + states + size.blocks * BLOCK * TORCH_SCORER_ENTRY_BYTES


def fitting(
    sizes: list[Size], sparsities: int, limit: float
) -> tuple[list[Size], list[tuple[Size, str]]]:
    """Split sizes into those that fit `limit` bytes, and the others with the reason."""
    fit, refused = [], []
    for size in sizes:
        needed = memory_bytes(size, sparsities)
        if needed <= limit:
            fit.append(size)
        else:
            reason = f"needs {needed / 1e9:.1f} GB for {size.layers} layers"
            refused.append((size, f"{reason}, {limit / 1e9:.1f} GB are allowed"))
    return fit, refused


def fewer_layers(size: Size, sparsities: int, limit: float) -> Size:
    """The size with as many of its layers as fit `limit` bytes; unchanged if not one does."""
    for layers in range(size.layers, 0, -1):
        candidate = replace(size, model=replace(size.model, indexer_layers=layers))
        if memory_bytes(candidate, sparsities) <= limit:
            return candidate
    return size
