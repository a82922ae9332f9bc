"""A plugin for the speculation test: writes down what SPIN is told and what it remembers.

The file named by `VERIFY_PROBE_FILE` receives a pickle stream of dictionaries: `begin` (rows,
generations, lengths of the first rows, kept blocks, and V and D after the fold), `observe` (a
layer's block maxima per row), and `accept` (how many rows of each request the engine accepted).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = "VERIFY_PROBE_FILE"
BLOCK = 64


def write_plugin(folder: Path) -> None:
    """Make `folder`, once on PYTHONPATH, an installed distribution whose plugin is this module."""
    info = folder / "verify_probe-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verify-probe\nVersion: 1\n")
    entry = f"verify_probe = {__name__}:register"
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records, in their order."""
    with path.open("rb") as source:
        while source.peek(1):
            yield pickle.load(source)


def register() -> None:
    """Wrap the runtime when the scheduler starts, and the engine's acceptance."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.__init__", _wrap_runtime, HookType.BEFORE
    )
    HookRegistry.register(
        "sglang.srt.speculative.eagle_utils.eagle_sample", _after_sample, HookType.AFTER
    )


def _wrap_runtime(*_args: Any, **_options: Any) -> None:
    from sglang_spin.engine.runtime import Runtime

    begin, observe = Runtime.begin, Runtime.observe

    def recorded_begin(runtime: Any, table: Any, lengths: Any, rows: Any, n: int = 1) -> Any:
        plan = begin(runtime, table, lengths, rows, n)
        _write(_begun(runtime.state, plan, lengths.tolist(), rows.tolist()))
        return plan

    def recorded_observe(runtime: Any, layer: int, logits: Any, plan: Any) -> None:
        observe(runtime, layer, logits, plan)
        slot = runtime.layer_slots[layer]
        _write({"kind": "observe", "layer": slot, "maxima": _maxima(slot, logits.numpy(), plan)})

    Runtime.begin, Runtime.observe = recorded_begin, recorded_observe


def _after_sample(result: Any, *_args: Any, **_options: Any) -> None:
    _write({"kind": "accept", "accepted": result[1].tolist()})


def _begun(state: Any, plan: Any, lengths: list[int], rows: list[int]) -> dict[str, Any]:
    n = plan.verify_rows
    history = state.history
    return {
        "kind": "begin",
        "n": n,
        "rows": rows,
        "lengths": lengths,
        "generations": state.generation[rows].tolist(),
        "kept": [
            [_blocks(plan, layer, i, n - 1) for i in range(len(rows))]
            for layer in range(plan.pages.shape[0])
        ],
        "vertical": history.vertical[:, rows].numpy().copy(),
        "distance": history.distance[:, rows].numpy().copy(),
    }


def _blocks(plan: Any, layer: int, request: int, draft: int) -> list[int]:
    length = int(plan.lengths[layer, request * plan.verify_rows + draft])
    found: list[int] = plan.blocks[layer, request, : -(-length // BLOCK)].tolist()
    return found


def _maxima(layer: int, logits: np.ndarray, plan: Any) -> list[dict[int, np.float32]]:
    """Of every row of the batch, by logical block."""
    found = []
    for row, length in enumerate(plan.lengths[layer].tolist()):
        blocks = _blocks(plan, layer, row // plan.verify_rows, row % plan.verify_rows)
        found.append(
            {
                block: logits[row, column * BLOCK : min(length, (column + 1) * BLOCK)].max()
                for column, block in enumerate(blocks)
            }
        )
    return found


def _write(record: dict[str, Any]) -> None:
    with Path(os.environ[FILE]).open("ab") as sink:
        pickle.dump(record, sink)
