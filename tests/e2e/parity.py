"""Comparing what an engine answered with what an oracle of the same weights answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_spin.cpu.models import default_cache_dir, ensure_model
from tests.e2e import _topk_probe as probe
from tests.e2e.prompts import prompt
from tests.e2e.server import Server

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Compared:
    """Engine and one variant of the oracle, over all steps of all prompts.

    error: largest difference of centred logits [steps]. margin: the oracle's top-1 minus top-2
    logit [steps]. equal: same token [steps]. overlap: common share of top-k [layers, steps].
    """

    error: np.ndarray
    margin: np.ndarray
    equal: np.ndarray
    overlap: np.ndarray

    def figures(self, bounds: tuple[float, ...]) -> dict[str, Any]:
        """What docs/parity.md prints."""
        return {
            "error_max": round(float(self.error.max()), 4),
            "error_median": round(float(np.median(self.error)), 4),
            "share_margin_above": {b: round(float((self.margin > b).mean()), 3) for b in bounds},
            "share_equal_tokens": round(float(self.equal.mean()), 3),
            "largest_margin_where_unequal": round(
                float(self.margin[~self.equal].max(initial=0)), 3
            ),
            "overlap_mean_per_layer": self.overlap.mean(1).round(4).tolist(),
            "overlap_worst_per_layer": self.overlap.min(1).round(4).tolist(),
        }


def probed_env(folder: Path, *probes: str) -> dict[str, str]:
    """Environment of a server that records its selections in `folder`/records.bin."""
    probe.write_plugin(folder / "plugin", *probes)
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "plugin"), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        probe.FILE: str(folder / "records.bin"),
    }


def engine_answers(
    server: Server,
    lengths: Sequence[int],
    steps: int,
    vocabulary: int,
    records: Path,
    read: Callable[[Path, int], np.ndarray],
) -> dict[str, np.ndarray]:
    """Greedy continuations, full log-probabilities and selections, named as _hf_oracle reads them.

    read: the selections in `records` of that many tokens.
    """
    seen: dict[str, np.ndarray] = {"lengths": np.array(lengths)}
    for i, length in enumerate(lengths):
        server.flush()
        records.unlink(missing_ok=True)
        ids = prompt(length, seed=length)
        options = {"return_logprob": True, "top_logprobs_num": vocabulary}
        [reply] = server.generate([ids], steps, **options)
        output = reply["output_ids"]
        seen[f"ids_{i}"] = np.array(ids + output[:-1])
        seen[f"output_{i}"] = np.array(output)
        seen[f"logprobs_{i}"] = table(reply["meta_info"]["output_top_logprobs"])
        seen[f"selected_{i}"] = read(records, length + steps - 1)
    return seen


def ask_oracle(
    module: str, model: str, engine: dict[str, np.ndarray], folder: Path
) -> dict[str, np.ndarray]:
    """transformers' answers, teacher-forced on the engine's tokens, from a process of its own."""
    np.savez(folder / "request.npz", **engine)
    weights = ensure_model(model, default_cache_dir())
    files = [str(folder / name) for name in ("request.npz", "answer.npz")]
    command = [sys.executable, "-m", module, str(weights), *files]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return dict(np.load(files[1]))


def table(steps: list[list[list[Any]]]) -> np.ndarray:
    """[steps, vocabulary] log-probabilities from (log-probability, token, text) entries."""
    values = np.full((len(steps), len(steps[0])), np.nan)
    for row, entries in zip(values, steps, strict=True):
        for value, token, *_ in entries:
            row[token] = value
    assert not np.isnan(values).any()
    return values


def compare(
    engine: dict[str, np.ndarray], oracle: dict[str, np.ndarray], variant: str, prompts: range
) -> Compared:
    """`engine` and `oracle` hold arrays per prompt i, named as in _hf_oracle."""
    error, margin, equal, overlap = [], [], [], []
    for i in prompts:
        logits = oracle[f"{variant}_logits_{i}"]
        # log-probabilities are logits less a constant
        error.append(np.abs(centred(engine[f"logprobs_{i}"]) - centred(logits)).max(-1))
        best = np.sort(logits, -1)
        margin.append(best[:, -1] - best[:, -2])
        equal.append(logits.argmax(-1) == engine[f"output_{i}"])
        overlap.append(
            _overlap(engine[f"selected_{i}"][:, -len(logits) :], oracle[f"{variant}_topk_{i}"])
        )
    columns = np.concatenate(overlap, 1)
    return Compared(np.concatenate(error), np.concatenate(margin), np.concatenate(equal), columns)


def centred(logits: np.ndarray) -> np.ndarray:
    return logits - logits.mean(-1, keepdims=True)


def _overlap(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[layers, steps, topk] twice -> share of `ours` that is in `theirs` [layers, steps]."""
    pairs = zip(ours, theirs, strict=True)
    return np.array([[np.isin(a, b).mean() for a, b in zip(*pair, strict=True)] for pair in pairs])
