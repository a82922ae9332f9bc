"""The server with SPIN and a recorder: every score of every verify step, and what was accepted.

Run as the main module, so that spawned schedulers import it too and register the same hooks.
BENCH_VERIFY_FILE names the file that gets a pickle per layer and step: ("scores", layer, lengths,
logits fp32 [rows, columns]), and per step ("accepted", rows of each request). Start it with policy
dense: then the columns are positions.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

from sglang_spin.cpu import bootstrap

RECORD_FILE = "BENCH_VERIFY_FILE"


def _write(record: tuple[Any, ...]) -> None:
    with Path(os.environ[RECORD_FILE]).open("ab") as sink:
        pickle.dump(record, sink)


def _around_observe(original: Any, runtime: Any, layer: int, logits: Any, plan: Any) -> None:
    original(runtime, layer, logits, plan)
    slot = runtime.layer_slots[layer]
    lengths = plan.lengths[slot].tolist()
    scores = logits[:, : max(lengths)].numpy().copy()
    _write(("scores", slot, lengths, scores))


def _after_sample(result: Any, *_args: Any, **_options: Any) -> None:
    _write(("accepted", result[1].tolist()))


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang_spin.engine.runtime.Runtime.observe", _around_observe, HookType.AROUND
    )
    HookRegistry.register(
        "sglang.srt.speculative.eagle_utils.eagle_sample", _after_sample, HookType.AFTER
    )


if __name__ in ("__main__", "__mp_main__"):
    bootstrap.prepare()
    _register()

if __name__ == "__main__":
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
