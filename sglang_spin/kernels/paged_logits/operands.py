"""The scorer's arguments, checked once; the kernels behind it assume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.kernels.paged_logits.layout import DIM, FP4, FP8, GROUP, PageFormat

HEADS = (16, 32, 64)
MAX_NEXT_N = 5
MAX_ROWS = 4096  # each program holds all lengths in registers
_ALIGNMENT = 16  # bytes of one vector load
_FP8_TYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)  # the second is what a gfx942 computes


class Placement(NamedTuple):
    """Where block maxima go: block j of row r to maxima[rows[r], columns[r // next_n, j]].

    rows: int64 [rows], 0 for rows whose maxima go nowhere. columns: int32 [tables, >= blocks], read
    only as far as the lengths reach. Both point into `maxima`, which nobody checks.
    """

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True)
class Operands:
    """Shapes as in `paged_logits`; `logits` and `maxima` are written in place."""

    q: Tensor
    q_scales: Tensor | None
    cache: Tensor
    weights: Tensor
    lengths: Tensor
    page_table: Tensor
    logits: Tensor
    maxima: Tensor | None
    placement: Placement | None = None

    def __post_init__(self) -> None:
        self._check_rows()
        self._check_cache()
        self._check_tables()
        self._check_outputs()
        self._check_placement()
        for name, tensor in self._named():
            if tensor.device != self.q.device:
                raise ValueError(f"{name} is on {tensor.device}, q on {self.q.device}")

    @property
    def format(self) -> PageFormat:
        return FP8 if self.q_scales is None else FP4

    @property
    def rows(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def next_n(self) -> int:
        """Consecutive rows that share a row of the page table."""
        return self.rows // self.page_table.shape[0] if self.rows else 1

    @property
    def capacity(self) -> int:
        """Entries a row can have: no more than its table names and its logits hold."""
        return min(self.page_table.shape[1] * BLOCK, self.logits.shape[1])

    def _named(self) -> list[tuple[str, Tensor]]:
        fields = {**vars(self), **(self.placement._asdict() if self.placement else {})}.items()
        return [(name, value) for name, value in fields if isinstance(value, Tensor)]

    def _check_rows(self) -> None:
        q, scales = self.q, self.q_scales
        wanted = _FP8_TYPES if scales is None else (torch.uint8, torch.int8)
        inner = DIM if scales is None else DIM // 2
        if q.dtype not in wanted or q.dim() != 3 or q.shape[2] != inner:
            raise ValueError(
                f"q must be {wanted[0]} [rows, heads, {inner}] for {self.format.name} pages,"
                f" got {_describe(q)}"
            )
        if self.heads not in HEADS:
            padded = next((h for h in HEADS if h > self.heads), None)
            advice = "split the heads and add the logits"
            if padded:
                advice = f"pad q and weights with zeros to {padded} heads"
            raise ValueError(f"q has {self.heads} heads, supported are {HEADS}: {advice}")
        _expect("weights", self.weights, torch.float32, (self.rows, self.heads))
        _expect("lengths", self.lengths, torch.int32, (self.rows,))
        if scales is not None:
            _expect("q_scales", scales, torch.uint8, (self.rows, self.heads, DIM // GROUP))
        for name in ("q", "q_scales", "weights", "lengths"):
            tensor = getattr(self, name)
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous, got strides {tensor.stride()} for shape"
                    f" {tuple(tensor.shape)}: pass {name}.contiguous()"
                )

    def _check_cache(self) -> None:
        cache, bytes_ = self.cache, self.format.page_bytes
        if cache.dtype != torch.uint8 or cache.dim() != 2 or cache.shape[1] != bytes_:
            raise ValueError(
                f"cache must be torch.uint8 [pages, {bytes_}] for {self.format.name} pages,"
                f" got {_describe(cache)}"
            )
        aligned = cache.stride(0) % _ALIGNMENT == 0 and cache.data_ptr() % _ALIGNMENT == 0
        if cache.stride(1) != 1 or not aligned:
            raise ValueError(
                f"cache must have contiguous pages that start at multiples of {_ALIGNMENT} bytes,"
                f" got strides {cache.stride()} at address {cache.data_ptr():#x}"
            )

    def _check_tables(self) -> None:
        table = self.page_table
        if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1:
            raise ValueError(
                f"page_table must be torch.int32 [tables, blocks] with stride 1 along a row,"
                f" got {_describe(table)}, strides {table.stride()}"
            )
        tables = table.shape[0]
        whole = tables > 0 and self.rows % tables == 0 and self.rows // tables <= MAX_NEXT_N
        if self.rows and not (whole and self.rows >= tables):
            raise ValueError(
                f"page_table needs one row per row of q ({self.rows}) or per 2 to {MAX_NEXT_N}"
                f" consecutive rows, got {tables}"
            )
        if self.rows > MAX_ROWS:
            raise ValueError(f"q has {self.rows} rows, at most {MAX_ROWS} at once: split the batch")

    def _check_outputs(self) -> None:
        blocks = -(-self.capacity // BLOCK)
        for name, least in (("logits", 0), ("maxima", blocks)):
            out = getattr(self, name)
            if out is None:
                continue
            placed = name == "maxima" and self.placement is not None
            fits = out.dim() == 2 and out.shape[1] >= (0 if placed else least)
            fits = fits and (placed or out.shape[0] == self.rows)
            if out.dtype != torch.float32 or not fits or out.stride(1) != 1:
                raise ValueError(
                    f"{name} must be torch.float32 [{self.rows}, >= {least}] with stride 1 along"
                    f" a row, got {_describe(out)}, strides {out.stride()}"
                )

    def _check_placement(self) -> None:
        if self.placement is None:
            return
        if self.maxima is None:
            raise ValueError("placement says where maxima go, but maxima is None: pass both")
        rows, columns = self.placement
        _expect("placement.rows", rows, torch.int64, (self.rows,))
        blocks = -(-self.capacity // BLOCK)
        fits = columns.dim() == 2 and columns.shape[0] == self.page_table.shape[0]
        if columns.dtype != torch.int32 or not fits or columns.shape[1] < blocks:
            raise ValueError(
                f"placement.columns must be torch.int32 [{self.page_table.shape[0]}, >= {blocks}],"
                f" got {_describe(columns)}"
            )
        if not rows.is_contiguous() or columns.stride(1) != 1:
            raise ValueError(
                "placement.rows and each row of placement.columns must be contiguous, got strides"
                f" {rows.stride()} and {columns.stride()}"
            )


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _expect(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {dtype} {list(shape)}, got {_describe(tensor)}")
