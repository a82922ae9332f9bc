"""A plugin for the index-sharing test: whose selection each layer's attention reads.

The file named by SELECTION_PROBE receives, in order, one line per decode call:
{"call": "indexer" or "attention", "layer": id, "selection": digest of its slots}.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

FILE = "SELECTION_PROBE"


def calls(path: Path) -> list[dict[str, Any]]:
    """What was written, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def register() -> None:
    """Wrap indexer and attention in the scheduler process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.__init__", _wrap, HookType.BEFORE
    )


def _wrap(*_args: Any, **_options: Any) -> None:
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
    from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend

    indexer, attention = Indexer.forward_cuda, DeepseekSparseAttnBackend.forward_decode
    of_indexer, of_attention = inspect.signature(indexer), inspect.signature(attention)

    def forward_cuda(*args: Any, **options: Any) -> Any:
        slots = indexer(*args, **options)
        call = of_indexer.bind(*args, **options).arguments
        if call["forward_batch"].forward_mode.is_decode():
            _write("indexer", call["layer_id"], slots)
        return slots

    def forward_decode(*args: Any, **options: Any) -> Any:
        call = of_attention.bind(*args, **options).arguments
        _write("attention", call["layer"].layer_id, call["topk_indices"])
        return attention(*args, **options)

    Indexer.forward_cuda = forward_cuda
    DeepseekSparseAttnBackend.forward_decode = forward_decode


def _write(call: str, layer: int, slots: Any) -> None:
    digest = hashlib.sha256(slots.contiguous().numpy().tobytes()).hexdigest()
    line = {"call": call, "layer": layer, "selection": digest}
    with Path(os.environ[FILE]).open("a") as sink:
        sink.write(json.dumps(line) + "\n")
