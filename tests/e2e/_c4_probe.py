"""A plugin for V4's parity test: which entries each C4 layer of a real engine selects per token.

Records as in _topk_probe: int32 [2 + 512] = place among the C4 layers, position, selected entries
(-1 pads). Send one request at a time: a batch is taken to be of one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e._topk_probe import FILE

C4_LAYERS = (1, 3)
TOPK = 512
PAGE = 64  # entries


def register() -> None:
    """Wrap the indexer when the scheduler starts: SGLang imports it only then."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.__init__", _wrap_indexer, HookType.BEFORE
    )


def _wrap_indexer(*_args: Any, **_options: Any) -> None:
    from sglang.srt.layers.attention.dsv4.indexer import C4IndexerBackendMixin

    original = C4IndexerBackendMixin.forward_c4_indexer

    def forward_c4_indexer(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        core = self.forward_metadata.core_metadata
        slots = core.c4_sparse_page_indices.numpy()
        layer = C4_LAYERS.index(options["c4_indexer"].layer_id)
        _append(layer, core.positions.numpy(), slots, core.page_table[-1].numpy())

    C4IndexerBackendMixin.forward_c4_indexer = forward_c4_indexer


def _append(layer: int, positions: np.ndarray, slots: np.ndarray, pages: np.ndarray) -> None:
    """positions [rows]; slots [rows, TOPK] physical, -1 pads; pages: the request's page table."""
    used = pages[: positions.max() // (4 * PAGE) + 1]
    index_of_page = np.full(used.max() + 1, -1, dtype=np.int32)
    index_of_page[used] = np.arange(len(used), dtype=np.int32)
    records = np.full((len(positions), 2 + TOPK), -1, dtype=np.int32)
    records[:, 0], records[:, 1] = layer, positions
    rows, columns = np.nonzero(slots >= 0)
    chosen = slots[rows, columns]
    records[rows, 2 + columns] = index_of_page[chosen // PAGE] * PAGE + chosen % PAGE
    with Path(os.environ[FILE]).open("ab") as sink:
        sink.write(records.tobytes())
