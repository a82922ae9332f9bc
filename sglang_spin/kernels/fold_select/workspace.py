"""What fold_select writes, allocated once so that a CUDA graph can record the launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_spin.core.audit import Flags
from sglang_spin.core.step import Shape


@dataclass(frozen=True)
class Workspace:
    """Static outputs for up to `batch` rows and `width` page-table columns.

    pages, blocks: int32 [layers, batch, width]. lengths: int32 [batch * shape.verify_rows].
    arrivals: int32 [state rows], zero between launches. audited: bool [batch], and flags: uint8
    [layers, batch, width], make core.audit.Flags; None without audits. One workspace serves every
    captured batch size, because only one graph runs at a time; a step's Plan is views of it and
    stands until the next.
    """

    pages: Tensor
    blocks: Tensor
    lengths: Tensor
    arrivals: Tensor
    audited: Tensor | None = None
    flags: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """8 bytes per layer, row and column, 9 with audits."""
        return sum(t.nbytes for t in vars(self).values() if t is not None)

    def flags_of(self, n: int, width: int) -> Flags | None:
        """Views for n rows and width columns."""
        if self.audited is None or self.flags is None:
            return None
        return Flags(self.audited[:n], self.flags[:, :n, :width])


def allocate(
    shape: Shape, batch: int, width: int, device: torch.device | str, *, audits: bool = False
) -> Workspace:
    """All zero: page 0 exists in every engine, so columns that no step has written are safe."""
    columns = (shape.layers, batch, width)
    return Workspace(
        pages=torch.zeros(columns, dtype=torch.int32, device=device),
        blocks=torch.zeros(columns, dtype=torch.int32, device=device),
        lengths=torch.zeros(batch * shape.verify_rows, dtype=torch.int32, device=device),
        arrivals=torch.zeros(shape.rows, dtype=torch.int32, device=device),
        audited=torch.zeros(batch, dtype=torch.bool, device=device) if audits else None,
        flags=torch.zeros(columns, dtype=torch.uint8, device=device) if audits else None,
    )
