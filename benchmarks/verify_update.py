"""What folding only the first row of a verify step costs: `python -m benchmarks.verify_update`.

The real server on tiny-dsa-mtp records every score of every verify step and what was accepted, with
policy dense, for EAGLE (3 steps) and NGRAM. The record is then replayed through SpinState: the miss
of an accepted row in a layer is the share of its true top-k that lies in blocks not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.verify_server import RECORD_FILE
from sglang_spin.config import VERIFY_UPDATES, SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.cpu.launch_defaults import server_args
from sglang_spin.cpu.models import default_cache_dir, ensure_model

PROMPT, TOKENS, TOPK = 6000, 400, 128
WARM_STEPS = 5  # not counted: blocks are cold
SPARSITIES = (0.4, 0.6)
DRAFTERS = {
    "EAGLE": ("--speculative-num-steps=3", "--speculative-eagle-topk=1"),
    "NGRAM": ("--speculative-ngram-max-bfs-breadth=1",),
}


class Step(NamedTuple):
    """scores: fp32 [layers, rows, columns]; length: of the first row; accepted: rows."""

    scores: torch.Tensor
    length: int
    accepted: int


def record(drafter: str, scratch: Path) -> list[Step]:
    """Serve one request with a structured prompt; its verify steps."""
    model = ensure_model("tiny-dsa-mtp", default_cache_dir())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (*DRAFTERS[drafter], "--speculative-num-draft-tokens=4", f"--port={port}")
    command = [sys.executable, "-m", "benchmarks.verify_server", *server_args(str(model)), *options]
    command += [f"--model-path={model}", f"--speculative-algorithm={drafter}"]
    config = SpinConfig(enabled=True, policy="dense").to_env()
    file = scratch / drafter
    with (scratch / f"{drafter}.log").open("w") as log:
        process = subprocess.Popen(
            command, env=os.environ | config | {RECORD_FILE: str(file)}, stdout=log, stderr=log
        )
    try:
        _generate(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(timeout=60)
    return _steps(file)


def _generate(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("benchmarks.verify_update: the server did not start")
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    rng, ids = random.Random(1), list[int]()
    while len(ids) < PROMPT:
        topic = rng.randrange(32)
        ids += [max(3, topic * 32 + rng.randrange(32)) for _ in range(rng.randint(20, 200))]
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = json.dumps({"input_ids": ids[:PROMPT], "sampling_params": sampling}).encode()
    request = urllib.request.Request(url + "/generate", data=body)
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=600):
        pass


def _steps(file: Path) -> list[Step]:
    steps, layers, length = [], list[np.ndarray](), 0
    with file.open("rb") as source:
        while source.peek(1):
            item: tuple[Any, ...] = pickle.load(source)
            if item[0] == "scores":
                length = item[2][0]
                layers.append(item[3])
            elif length > PROMPT:
                steps.append(Step(torch.from_numpy(np.stack(layers)), length, item[1][0]))
                layers = []
            else:
                layers = []
    return steps


def replay(steps: list[Step], update: str, sparsity: float) -> np.ndarray:
    """Miss of every accepted row and layer."""
    layers, rows = steps[0].scores.shape[:2]
    blocks = -(-(PROMPT + TOKENS + 8) // BLOCK)
    config = SpinConfig(enabled=True, sparsity=sparsity, verify_update=update)
    state = SpinState(config, Shape(layers, 2, blocks, blocks + 1, TOPK, verify_rows=rows))
    owner, table = torch.tensor([1]), torch.arange(blocks, dtype=torch.int32)[None]
    state.open_rows(owner)
    misses = []
    for number, step in enumerate(steps):
        plan = state.begin(table, torch.tensor([step.length], dtype=torch.int32), owner, rows)
        for layer in range(layers):
            full = torch.nn.functional.pad(step.scores[layer], (0, blocks * BLOCK))
            for row in range(step.accepted if number >= WARM_STEPS else 0):
                count = -(-int(plan.lengths[layer, row]) // BLOCK)
                best = full[row, : step.length + row].topk(TOPK).indices // BLOCK
                kept = torch.isin(best, plan.blocks[layer, 0, :count].long())
                misses.append(1 - kept.float().mean().item())
            slots = plan.blocks[layer, 0].long()[:, None] * BLOCK + torch.arange(BLOCK)
            state.observe(layer, full[:, slots.flatten()], plan)
    return np.array(misses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        for drafter in DRAFTERS:
            steps = record(drafter, Path(scratch))
            length = sum(step.accepted for step in steps) / len(steps)
            for sparsity in SPARSITIES:
                for update in VERIFY_UPDATES:
                    miss = replay(steps, update, sparsity)
                    figures.append(
                        {
                            "drafter": drafter,
                            "steps": len(steps),
                            "accept_length": round(length, 2),
                            "sparsity": sparsity,
                            "verify_update": update,
                            "miss_mean": round(float(miss.mean()), 4),
                            "miss_p99": round(float(np.quantile(miss, 0.99)), 4),
                        }
                    )
                    print(json.dumps(figures[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
