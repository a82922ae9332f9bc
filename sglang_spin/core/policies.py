"""Which history a policy keeps."""

from __future__ import annotations

import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.history import History
from sglang_spin.core.slot_history import SlotHistory


def history_of(
    config: SpinConfig,
    layers: int,
    rows: int,
    blocks: int,
    stashes: int,
    device: torch.device | str,
) -> History:
    """The history of a configuration; stashes: rows of a verify step whose scores it keeps.

    Raises ValueError for a policy that has no verify step.
    """
    if config.policy == "spin-paper":
        if stashes > 1:
            raise ValueError("policy 'spin-paper' has no verify step: its state is per slot")
        return SlotHistory(layers, rows, blocks, device=device)
    alpha, staleness, diagonal = config.alpha, config.staleness, True
    if config.policy in ("prev-iter", "random", "dense"):
        alpha, staleness, diagonal = 1.0, 0.0, False
    return BlockHistory(
        layers,
        rows,
        blocks,
        alpha=alpha,
        staleness=staleness,
        diagonal=diagonal,
        stashes=stashes,
        device=device,
    )
