"""A plugin for the parity test: writes down which tokens each layer of a real engine selects.

SGLang's own capture of top-k indices (`--enable-return-indexer-topk`) is wired for CUDA and NPU
only. The file named by `TOPK_PROBE_FILE` receives one record per layer and token, prompt tokens
included: int32 [2 + 128] = layer, position, selected positions (-1 pads). Send one request at a
time: a row is taken to belong to the batch's last request.
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


def write_plugin(folder: Path, module: str = __name__) -> None:
    """Make `folder`, once on PYTHONPATH, an installed distribution whose plugin is `module`."""
    info = folder / "topk_probe-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: topk-probe\nVersion: 1\n")
    entry = f"topk_probe = {module}:register"
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n")


def read(path: Path, layers: int, length: int, topk: int = TOPK) -> np.ndarray:
    """[layers, length, topk] selected positions; -1 pads. Every layer and token must be there."""
    records = np.fromfile(path, dtype=np.int32).reshape(-1, 2 + topk)
    selected = np.full((layers, length, topk), -2, dtype=np.int32)
    selected[records[:, 0], records[:, 1]] = records[:, 2:]
    assert (selected >= -1).all()
    return selected


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
            _append(layer, positions.numpy(), slots.numpy(), pages.numpy())
        return slots

    Indexer.forward_cuda = forward_cuda


def _append(layer: int, positions: np.ndarray, slots: np.ndarray, pages: np.ndarray) -> None:
    """positions [rows]; slots [rows, TOPK] physical, -1 pads; pages: the request's page table."""
    used = pages[: positions.max() // PAGE + 1]
    index_of_page = np.full(used.max() + 1, -1, dtype=np.int32)
    index_of_page[used] = np.arange(len(used), dtype=np.int32)
    logical = index_of_page[slots // PAGE] * PAGE + slots % PAGE
    records = np.empty((len(positions), RECORD), dtype=np.int32)
    records[:, 0] = layer
    records[:, 1] = positions
    records[:, 2:] = np.where(slots >= 0, logical, -1)
    with Path(os.environ[FILE]).open("ab") as sink:
        sink.write(records.tobytes())
