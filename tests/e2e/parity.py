"""Comparing what an engine answered with what an oracle of the same weights answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


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
