"""What fold_select writes, allocated once so that a CUDA graph can record the launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_spin.core.step import Shape


@dataclass(frozen=True)
class Workspace:
    """Static outputs for up to `batch` rows and `width` page-table columns.

    pages, blocks: int32 [layers, batch, width]. lengths: int32 [batch]. arrivals: int32 [state
    rows], zero between launches. One workspace serves every captured batch size, because only one
    graph runs at a time; a step's Plan is views of it and stands until the next step.
    """

    pages: Tensor
    blocks: Tensor
    lengths: Tensor
    arrivals: Tensor

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.pages, self.blocks, self.lengths, self.arrivals))


def allocate(shape: Shape, batch: int, width: int, device: torch.device | str) -> Workspace:
    """All zero: page 0 exists in every engine, so columns that no step has written are safe."""
    columns = (shape.layers, batch, width)
    return Workspace(
        pages=torch.zeros(columns, dtype=torch.int32, device=device),
        blocks=torch.zeros(columns, dtype=torch.int32, device=device),
        lengths=torch.zeros(batch, dtype=torch.int32, device=device),
        arrivals=torch.zeros(shape.rows, dtype=torch.int32, device=device),
    )
