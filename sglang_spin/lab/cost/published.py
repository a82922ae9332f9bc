"""What the SPIN paper published of its serving run, and the point it was measured at."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_spin.lab.cost.gpus import GPUS
from sglang_spin.lab.cost.models import V4_FLASH
from sglang_spin.lab.cost.traffic import Load


@dataclass(frozen=True)
class PublishedRun:
    """sparsity: target share of blocks skipped; itl: median, seconds; tokens_per_second: output."""

    sparsity: float
    itl: float
    tokens_per_second: float


# arXiv 2610.09025 v1, through a public digest; v3 states +13.9 % where v1 states +14.9 %
ALL_KEEP = PublishedRun(0.0, 17.837e-3, 4720.29)
AT_40 = PublishedRun(0.4, 16.204e-3, 5218.65)
AT_50 = PublishedRun(0.5, 15.484e-3, 5421.45)
RUNS = (ALL_KEEP, AT_40, AT_50)

GPU = GPUS["b300"]
MODEL = V4_FLASH
LOAD = Load(context=507_000, batch=96, tp=8, index_format="fp8")
