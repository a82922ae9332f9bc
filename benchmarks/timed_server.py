"""The stock server with stopwatches: each decode step's forward time, and the indexer's share.

Run as the main module, so that spawned schedulers import it too and register the same hooks.
BENCH_TIMING_FILE names the file that gets one JSON line per decode step.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from sglang_spin.cpu import bootstrap

TIMING_FILE = "BENCH_TIMING_FILE"


class Stopwatch:
    """Seconds spent in indexers since the current forward pass began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.indexer = 0.0

    def time_indexer(self, original: Any, *args: Any, **options: Any) -> Any:
        """Around Indexer.forward_cuda."""
        started = time.perf_counter()
        try:
            return original(*args, **options)
        finally:
            self.indexer += time.perf_counter() - started

    def time_forward(
        self, original: Any, runner: Any, batch: Any, *args: Any, **options: Any
    ) -> Any:
        """Around ModelRunner._forward_raw; writes a line if the pass was a decode step."""
        self.indexer = 0.0
        started = time.perf_counter()
        result = original(runner, batch, *args, **options)
        if batch.forward_mode.is_decode():
            step = {
                "rows": int(batch.batch_size),
                "context": int(batch.seq_lens.max()),
                "forward_s": time.perf_counter() - started,
                "indexer_s": self.indexer,
            }
            with self.path.open("a") as file:
                file.write(json.dumps(step) + "\n")
        return result


def _register(path: Path) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    watch = Stopwatch(path)
    indexer = "sglang.srt.layers.attention.dsa.dsa_indexer.Indexer.forward_cuda"
    forward = "sglang.srt.model_executor.model_runner.ModelRunner._forward_raw"
    HookRegistry.register(indexer, watch.time_indexer, HookType.AROUND)
    HookRegistry.register(forward, watch.time_forward, HookType.AROUND)


if __name__ in ("__main__", "__mp_main__"):
    bootstrap.prepare()
    _register(Path(os.environ[TIMING_FILE]))

if __name__ == "__main__":
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
