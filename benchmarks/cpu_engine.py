"""Speed of the CPU engine: `python -m benchmarks.cpu_engine [--out result.json]`.

Starts the real server on tiny-dsa and measures the time to ready, prefill of 8,192 tokens, decode
with four rows at several context lengths, and the indexer's share of a decode step. The share comes
from stopwatches around Indexer.forward_cuda and ModelRunner._forward_raw in the scheduler process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.timed_server import TIMING_FILE
from sglang_spin.cpu.launch_defaults import server_args
from sglang_spin.cpu.models import default_cache_dir, ensure_model

ROWS = 4
PREFILL_TOKENS = 8192
TAIL = 64  # tokens in which the rows of a batch differ
READY_LIMIT_S = 180
PACKAGES = ("sglang", "torch", "numba", "transformers")


class Server:
    """A server process; use it as a context manager. `ready_s` is its start-up time."""

    def __init__(self, model: Path, timing: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        command = [sys.executable, "-m", "benchmarks.timed_server", *server_args(str(model))]
        command += [f"--model-path={model}", f"--port={self.url.rpartition(':')[2]}"]
        self._log = log
        started = time.monotonic()
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, env=os.environ | {TIMING_FILE: str(timing)}, stdout=file, stderr=file
            )
        self._wait()
        self.ready_s = time.monotonic() - started

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.1)
        self.close()
        raise SystemExit(f"the server did not become ready; see {self._log}")

    def generate(self, prompts: list[list[int]], tokens: int) -> float:
        """Generate for all prompts at once; returns seconds until all are finished."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"input_ids": prompts, "sampling_params": sampling}).encode()
        request = urllib.request.Request(
            self.url + "/generate", body, {"Content-Type": "application/json"}
        )
        started = time.monotonic()
        with urllib.request.urlopen(request, timeout=900) as reply:
            reply.read()
        return time.monotonic() - started

    def close(self) -> None:
        """Stop the server and everything it started."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def topic_prompt(length: int, seed: int) -> list[int]:
    """Token ids in runs of one topic each, the kind of text tiny-dsa tells apart."""
    rng = random.Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        topic = rng.randrange(1, 32)
        ids += [32 * topic + rng.randrange(32) for _ in range(rng.randrange(20, 200))]
    return ids[:length]


def measure_prefill(server: Server, repeats: int) -> dict[str, Any]:
    """Prompt tokens per second, no cache hit, one request at a time."""
    rates = [
        PREFILL_TOKENS / server.generate([topic_prompt(PREFILL_TOKENS, seed)], 1)
        for seed in range(repeats)
    ]
    return {"tokens": PREFILL_TOKENS, "tok_s": rates, "median_tok_s": statistics.median(rates)}


def measure_decode(server: Server, timing: Path, context: int, steps: int) -> dict[str, Any]:
    """Step time with ROWS rows of `context` tokens, and where a step's time goes."""
    shared = topic_prompt(context - steps // 2 - TAIL, 1000 + context)
    prompts = [shared + topic_prompt(TAIL, row) for row in range(ROWS)]
    server.generate(prompts[:1], 1)
    first = server.generate(prompts, 1), server.generate(prompts, 1)
    timing.write_text("")
    wall = server.generate(prompts, steps + 1) - first[1]
    lines = [json.loads(line) for line in timing.read_text().splitlines()]
    full = [line for line in lines if line["rows"] == ROWS]
    forward = statistics.median(line["forward_s"] for line in full)
    indexer = statistics.median(line["indexer_s"] for line in full)
    step = wall / steps
    return {
        "context": context,
        "rows": ROWS,
        "step_ms": step * 1e3,
        "tok_s": ROWS / step,
        "forward_ms": forward * 1e3,
        "indexer_ms": indexer * 1e3,
        "indexer_share_of_forward": indexer / forward,
        "indexer_share_of_step": indexer / step,
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--steps", type=int, default=48, help="decode steps per measurement")
    parser.add_argument("--repeats", type=int, default=3, help="prefill repetitions")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    model = ensure_model("tiny-dsa", default_cache_dir())
    result: dict[str, Any] = {
        "machine": machine(),
        "model": model.name,
        "args": server_args(str(model)),
    }
    print(json.dumps(result["machine"]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        timing = Path(folder) / "timing.jsonl"
        log = Path(tempfile.gettempdir()) / f"cpu-engine-bench-{os.getpid()}.log"
        with Server(model, timing, log) as server:
            result["ready_s"] = server.ready_s
            print(f"ready after {server.ready_s:.1f} s", flush=True)
            server.generate([topic_prompt(512, 99)], 4)
            result["prefill"] = measure_prefill(server, options.repeats)
            print(json.dumps(result["prefill"]), flush=True)
            result["decode"] = []
            for context in options.contexts:
                result["decode"].append(measure_decode(server, timing, context, options.steps))
                print(json.dumps(result["decode"][-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
