"""Data sheet figures of the GPUs the model knows. Peaks, dense, of one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["bf16", "fp8", "fp4"]


@dataclass(frozen=True)
class Gpu:
    """bandwidth: HBM bytes/s; bf16, fp8, fp4: FLOP/s, 0 where the tensor cores lack the format;
    memory: HBM bytes; source: where the figures come from."""

    name: str
    bandwidth: float
    bf16: float
    fp8: float
    fp4: float
    memory: float
    source: str

    def peak(self, precision: Precision) -> float:
        """FLOP/s of the tensor cores in that precision."""
        return {"bf16": self.bf16, "fp8": self.fp8, "fp4": self.fp4}[precision]


_SHEET = "vendor data sheet (SXM/HGX part), as public comparisons repeat it"

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", 4.8e12, 0.99e15, 1.98e15, 0.0, 141e9, _SHEET),
        Gpu("b200", 7.7e12, 2.25e15, 4.5e15, 9e15, 180e9, _SHEET),
        Gpu("b300", 8.0e12, 2.25e15, 4.5e15, 14e15, 288e9, _SHEET),
    )
}
