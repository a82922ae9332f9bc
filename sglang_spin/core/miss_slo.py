"""Choosing the sparsities of the indexer layers that hold a bound on the measured miss."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_spin.core.allot import CURVE, Division
from sglang_spin.core.budget import Allotment

MIN_AUDITS = 32  # of each layer between two decisions
AIM = 0.9  # of the bound: where a correction tries to land
SLACK = 0.5  # of the bound: below it in every layer, sparsity may grow again
STEP_UP = 0.02
MEMORY = 0.5  # weight of what was measured before the last decision
NOTICED = 0.1  # of the bound, at the target: a few audits cannot tell less from it


@dataclass(frozen=True, slots=True)
class Decision:
    """New sparsities, and the sentence that says why."""

    allotment: Allotment
    reason: str


class MissSlo:
    """Keeps the mean miss of every layer within `bound`.

    A layer above it gets budget from layers that miss less, the total unchanged. If no division of
    the total is expected to hold the bound, the total grows (sparsity falls); it shrinks step by
    step towards `target` while every layer stays far below. No layer goes below min(bound, target):
    at a sparsity of `bound` even blocks drawn by lot miss no more. Nor does one give more than half
    of the budget that it has at the target.
    """

    def __init__(self, bound: float, target: float, layers: int) -> None:
        self.bound, self.target = bound, target
        self.least = min(bound, target)
        self.most = (1 + target) / 2
        self.allotment = Allotment.uniform(target, layers)
        # of each layer, sums over decisions: misses, and the sparsities that they were measured at
        self._missed = [0.0] * layers
        self._power = [0.0] * layers

    @property
    def sparsity(self) -> float:
        """What all layers together skip."""
        return self.allotment.sparsity

    def decide(self, misses: list[float]) -> Decision | None:
        """misses: mean miss of each layer since the last decision. None to leave it as it is."""
        division = Division(self._curves(misses), self.least, self.most)
        layer = max(range(len(misses)), key=lambda i: misses[i])
        worst = misses[layer]
        if worst > self.bound:
            found = f"indexer layer {layer} misses {worst:.3f} of its top-k, above {self.bound:g}"
            return self._correct(division, found)
        if worst < SLACK * self.bound and self.sparsity < self.target:
            higher = min(self.target, round(self.sparsity + STEP_UP, 4))
            found = f"every layer misses less than {SLACK:g} of the bound {self.bound:g}"
            return self._move(division.with_mean(higher), found)
        return None

    def _correct(self, division: Division, found: str) -> Decision | None:
        able = division.mean_at(AIM * self.bound)
        if able >= self.sparsity:
            return self._move(division.with_mean(self.sparsity), found)
        lower = max(self.least, int(able * 100) / 100)
        return self._move(division.with_mean(lower), found)

    def _move(self, allotment: Allotment, found: str) -> Decision | None:
        before, self.allotment = self.allotment, allotment
        if allotment == before:
            return None
        total = f"sparsity {before.sparsity:g} -> {allotment.sparsity:g}"
        if allotment.sparsity == before.sparsity:
            total = f"budget moves between layers, sparsity stays {before.sparsity:g}"
        return Decision(allotment, f"{found}: {total}{_listed(allotment)}")

    def _curves(self, misses: list[float]) -> list[float]:
        """Each layer's miss at sparsity 1, from all that was measured, newer misses weighing more.

        A layer above the bound is judged by its latest miss alone.
        """
        for i, (miss, sparsity) in enumerate(zip(misses, self.allotment.by_layer, strict=True)):
            memory = 0.0 if miss > self.bound else MEMORY
            self._missed[i] = self._missed[i] * memory + miss
            self._power[i] = self._power[i] * memory + sparsity**CURVE
        least = NOTICED * self.bound / self.target**CURVE
        measured = zip(self._missed, self._power, strict=True)
        return [max(missed / power, least) for missed, power in measured]


def _listed(allotment: Allotment) -> str:
    """The classes and their layers, as part of a sentence; nothing where all layers are alike."""
    if len(allotment.classes) == 1:
        return ""
    parts = []
    for i, sparsity in enumerate(allotment.classes):
        layers = [layer for layer, own in enumerate(allotment.layer_class) if own == i]
        parts.append(f"{sparsity:g} in {_spans(layers)}")
    return f" ({', '.join(parts)})"


def _spans(numbers: list[int]) -> str:
    """Ascending numbers in words: 0-3 7."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    pairs = zip(starts, ends, strict=True)
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)
