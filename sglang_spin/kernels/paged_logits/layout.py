"""Bytes of an index-K page, block-planar in both formats: all keys, then all scales."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_spin.core.block import BLOCK

DIM = 128  # values in an index key
GROUP = 32  # FP4 values that share one scale


@dataclass(frozen=True)
class PageFormat:
    """key_bytes and scale_bytes belong to one entry; a page holds BLOCK of each."""

    name: str
    key_bytes: int
    scale_bytes: int

    @property
    def page_bytes(self) -> int:
        return BLOCK * (self.key_bytes + self.scale_bytes)

    @property
    def scales_at(self) -> int:
        """Byte of a page where the scales begin."""
        return BLOCK * self.key_bytes


FP8 = PageFormat("fp8", DIM, 4)  # e4m3 values, one fp32 scale
FP4 = PageFormat("fp4", DIM // 2, DIM // GROUP)  # e2m1 pairs, low nibble first; ue8m0 scales
