"""How many blocks a row of n blocks may keep, in every layer alike or by classes of layers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK

CLASSES = 4  # most budgets of one step: each costs the engine one schedule and one top-k plan


@dataclass(frozen=True, slots=True)
class Allotment:
    """How one total of kept blocks is divided among the indexer layers.

    sparsity: the total is what all layers would keep at this sparsity. classes: the sparsities in
    force, highest first, at most CLASSES. layer_class: for each layer, its place in `classes`.
    """

    sparsity: float
    classes: tuple[float, ...]
    layer_class: tuple[int, ...]

    @classmethod
    def uniform(cls, sparsity: float, layers: int) -> Allotment:
        """Every layer alike."""
        return cls(sparsity, (sparsity,), (0,) * layers)

    @property
    def by_layer(self) -> list[float]:
        """Sparsity of each layer."""
        return [self.classes[i] for i in self.layer_class]


class Budgets:
    """The budgets of all layers on the device, changed in place, so that a recorded graph reads
    them like any other input: the class of a layer is data.

    table, verify_table: int32 [classes, blocks + 1], kept blocks by class and row size, the first
    class having the smallest; layer_class: int32 [layers]; member: int32 [classes], a layer of each
    class. With one class every layer is in it, always.
    """

    def __init__(
        self,
        allotment: Allotment,
        blocks: int,
        index_topk: int,
        *,
        classes: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.blocks, self.index_topk, self.classes = blocks, index_topk, classes
        self.allotment = allotment
        self.table = self._table(verify=False).to(device)
        self.verify_table = self._table(verify=True).to(device)
        self.layer_class = self._layer_class().to(device)
        self.member = self._member().to(device)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        tensors = (self.table, self.verify_table, self.layer_class, self.member)
        return sum(t.nbytes for t in tensors)

    def set(self, allotment: Allotment) -> None:
        """Change the budgets of the steps that follow on this stream, in a recorded graph too."""
        if len(allotment.classes) > self.classes:
            raise ValueError(f"at most {self.classes} classes, got {len(allotment.classes)}")
        self.allotment = allotment
        self.table.copy_(self._table(verify=False))
        self.verify_table.copy_(self._table(verify=True))
        self.layer_class.copy_(self._layer_class())
        self.member.copy_(self._member())

    def of(self, verify_rows: int) -> Tensor:
        """The table of a step with so many rows a request."""
        return self.table if verify_rows == 1 else self.verify_table

    def kept(self, count: Tensor, needed: Tensor, verify_rows: int) -> tuple[Tensor, Tensor]:
        """Blocks kept of rows with `count` blocks, `needed` of them in any case; both int [n].

        Returns int32 [n], the fewest that any layer may keep, and int32 [layers, n], by layer.
        """
        kept = torch.maximum(self.of(verify_rows)[:, count.long()], needed)
        layers = len(self.allotment.layer_class)
        if self.classes == 1:
            return kept[0], kept.expand(layers, -1)
        return kept[0], kept[self.layer_class.long()]

    def _table(self, *, verify: bool) -> Tensor:
        floor = budget_floor(self.index_topk, verify=verify)
        table = class_budgets(self.blocks, self.allotment, floor)
        # classes without a layer repeat the last one
        spare = table[-1:].expand(self.classes - table.shape[0], -1)
        return torch.cat((table, spare))

    def _layer_class(self) -> Tensor:
        return torch.tensor(self.allotment.layer_class, dtype=torch.int32)

    def _member(self) -> Tensor:
        of = self.allotment.layer_class
        members = [of.index(i) if i in of else 0 for i in range(self.classes)]
        return torch.tensor(members, dtype=torch.int32)


def budget_floor(index_topk: int, *, verify: bool = False) -> int:
    """Fewest blocks that surely hold index_topk entries: whole blocks plus the partial newest one.

    Attention reads min(length, index_topk) entries whatever was skipped, so fewer would expose
    top-k padding inside that length. Verifying several tokens may straddle one more page.
    """
    return -(-index_topk // BLOCK) + 1 + int(verify)


def budget_table(blocks: int, sparsity: float, floor: int) -> Tensor:
    """Kept blocks for every row size 0..blocks: min(n, max(floor, ceil((1 - sparsity) * n))).

    Returns int32 [blocks + 1]. A table because ceil of a float product depends on rounding, and
    because the recorded region may only look up, not branch.
    """
    skip, whole = Fraction(str(sparsity)).as_integer_ratio()
    kept = [min(n, max(floor, n - skip * n // whole)) for n in range(blocks + 1)]
    return torch.tensor(kept, dtype=torch.int32)


def class_budgets(blocks: int, allotment: Allotment, floor: int) -> Tensor:
    """Kept blocks by class and row size: int32 [classes in force, blocks + 1].

    Over all layers no row size keeps more than at the allotment's sparsity in every layer: where
    rounding, or layers at the floor, would exceed that, the largest budgets are cut to one size.
    """
    own = torch.stack([budget_table(blocks, s, floor) for s in allotment.classes])
    even = budget_table(blocks, allotment.sparsity, floor)
    of = allotment.layer_class
    sizes = torch.tensor([of.count(i) for i in range(len(allotment.classes))])[:, None]
    total = even * len(of)
    # the largest size that fits, by bisection; an even share always does
    low, high = even, torch.arange(blocks + 1, dtype=torch.int32)
    for _ in range(blocks.bit_length()):
        size = (low + high + 1) // 2
        fits = (torch.minimum(own, size) * sizes).sum(0) <= total
        low, high = torch.where(fits, size, low), torch.where(fits, high, size - 1)
    return torch.minimum(own, low)


def block_count(lengths: Tensor) -> Tensor:
    """Blocks that hold `lengths` entries, the newest possibly partial. Same shape and dtype."""
    return (lengths + (BLOCK - 1)) // BLOCK
