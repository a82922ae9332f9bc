"""A plugin for the parity test: writes down which tokens each layer of a real engine selects.

SGLang's own capture of top-k indices (`--enable-return-indexer-topk`) is wired for CUDA and NPU only.
The file named by `TOPK_PROBE_FILE` receives one record per indexer call, for the call's last row:
int32 [2 + 128] = layer, position, selected positions (-1 pads). One request at a time, please.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np

FILE = "TOPK_PROBE_FILE"
TOPK = 128
RECORD = 2 + TOPK
PAGE = 64


def write_plugin(folder: Path) -> None:
    """Make `folder`, once on PYTHONPATH, an installed distribution whose plugin is this module."""
    info = folder / "topk_probe-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: topk-probe\nVersion: 1\n")
    entry = f"topk_probe = {__name__}:register"
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n")


def read(path: Path) -> dict[tuple[int, int], np.ndarray]:
    """(layer, position) -> selected positions, ascending; the later record of a pair counts."""
    records = np.fromfile(path, dtype=np.int32).reshape(-1, RECORD)
    return {(int(r[0]), int(r[1])): np.sort(r[2:][r[2:] >= 0]) for r in records}


def register() -> None:
    """Wrap the indexer when the scheduler starts: SGLang imports it only then."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.__init__", _wrap_indexer, HookType.BEFORE
    )


def _wrap_indexer(*_args: Any, **_options: Any) -> None:
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer, get_attn_backend

    original = Indexer.forward_cuda

    signature = inspect.signature(original)

    def forward_cuda(*args: Any, **options: Any) -> Any:
        slots = original(*args, **options)
        call = signature.bind(*args, **options).arguments
        layer, positions = call["layer_id"], call["positions"]
        if slots is not None and positions.shape[0]:
            metadata = get_attn_backend().get_indexer_metadata(layer, call["forward_batch"])
            pages = metadata.get_page_table_64()[-1]
            _append(layer, int(positions[-1]), slots[-1].numpy(), pages.numpy())
        return slots

    Indexer.forward_cuda = forward_cuda


def _append(layer: int, position: int, slots: np.ndarray, pages: np.ndarray) -> None:
    page_index = {int(page): i for i, page in enumerate(pages[: position // PAGE + 1])}
    record = np.full(RECORD, -1, dtype=np.int32)
    record[:2] = layer, position
    chosen = slots[slots >= 0]
    record[2 : 2 + len(chosen)] = [page_index[s // PAGE] * PAGE + s % PAGE for s in chosen.tolist()]
    with Path(os.environ[FILE]).open("ab") as sink:
        sink.write(record.tobytes())
