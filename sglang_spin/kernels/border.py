"""Checks of arguments that several operators share."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan


def check_scores(layer: int, logits: Tensor, plan: Plan) -> None:
    """Raise ValueError unless these can be the scores of a layer (0-based) of `plan`.

    logits: fp32 [n * plan.verify_rows, >= width * 64], contiguous in a row, any row stride.
    """
    layers, requests, width = plan.pages.shape
    n = requests * plan.verify_rows
    if not 0 <= layer < layers:
        raise ValueError(f"layer must be 0 to {layers - 1}, got {layer}")
    if logits.dim() != 2 or logits.shape[0] != n or logits.shape[1] < width * BLOCK:
        want = f"[{n}, >= {width * BLOCK}]"
        raise ValueError(f"logits must be float32 {want}, got {list(logits.shape)}")
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        kind = f"{logits.dtype} with strides {logits.stride()}"
        raise ValueError(f"logits must be float32 and contiguous in a row, got {kind}")
