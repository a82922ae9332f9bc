"""What fold_select writes, allocated once so that a CUDA graph can record the launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_spin.core.audit import Flags
from sglang_spin.core.step import Shape

LINE = 4  # lengths: 16 bytes


@dataclass(frozen=True)
class Workspace:
    """Static outputs for up to `batch` rows and `width` page-table columns.

    pages, blocks: int32 [layers, batch, width]. lengths: int32 [lines, >= batch *
    shape.verify_rows], one line for all layers, or one for each where they have classes.
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

    def lengths_of(self, rows: int) -> Tensor:
        """View for so many rows: int32 [layers, rows]."""
        return self.lengths[:, :rows].expand(self.pages.shape[0], -1)

    def flags_of(self, n: int, width: int) -> Flags | None:
        """Views for n rows and width columns."""
        if self.audited is None or self.flags is None:
            return None
        return Flags(self.audited[:n], self.flags[:, :n, :width])


def allocate(
    shape: Shape,
    batch: int,
    width: int,
    device: torch.device | str,
    *,
    audits: bool = False,
    classes: int = 1,
) -> Workspace:
    """All zero: page 0 exists in every engine, so columns that no step has written are safe.

    audits, classes: of the state that will use it.
    """
    columns = (shape.layers, batch, width)
    # every line begins where a kernel may take wide loads for granted
    rows = -(-batch * shape.verify_rows // LINE) * LINE
    return Workspace(
        pages=torch.zeros(columns, dtype=torch.int32, device=device),
        blocks=torch.zeros(columns, dtype=torch.int32, device=device),
        lengths=torch.zeros(
            shape.layers if classes > 1 else 1, rows, dtype=torch.int32, device=device
        ),
        arrivals=torch.zeros(shape.rows, dtype=torch.int32, device=device),
        audited=torch.zeros(batch, dtype=torch.bool, device=device) if audits else None,
        flags=torch.zeros(columns, dtype=torch.uint8, device=device) if audits else None,
    )
