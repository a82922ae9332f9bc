"""Choosing the sparsity that holds a bound on the measured miss."""

from __future__ import annotations

from dataclasses import dataclass

MIN_AUDITS = 32  # of each layer between two decisions
AIM = 0.9  # of the bound: where a correction tries to land
SLACK = 0.5  # of the bound: below it in every layer, sparsity may grow again
STEP_UP = 0.02
CURVE = 2.0  # miss grows about as sparsity to this power (measured traces: 2 to 2.5)


@dataclass(frozen=True, slots=True)
class Decision:
    """A new sparsity, and the sentence that says why."""

    sparsity: float
    reason: str


class MissSlo:
    """Lowers sparsity as soon as one layer misses more than `bound` on average, and raises it step
    by step towards `target` while every layer stays far below.

    Not below min(bound, target): at a sparsity of `bound` even blocks drawn by lot miss no more.
    """

    def __init__(self, bound: float, target: float) -> None:
        self.bound, self.target = bound, target
        self.least = min(bound, target)
        self.sparsity = target

    def decide(self, misses: list[float]) -> Decision | None:
        """misses: mean miss of each layer since the last decision. None to leave it as it is."""
        layer = max(range(len(misses)), key=lambda i: misses[i])
        worst = misses[layer]
        if worst > self.bound:
            return self._lower(layer, worst)
        if worst < SLACK * self.bound and self.sparsity < self.target:
            return self._move(
                min(self.target, self.sparsity + STEP_UP),
                f"every layer misses less than {SLACK:g} of the bound {self.bound:g}",
            )
        return None

    def _lower(self, layer: int, worst: float) -> Decision | None:
        found = f"indexer layer {layer} misses {worst:.3f} of its top-k, above {self.bound:g}"
        if self.sparsity == self.least:
            return None
        better = self.sparsity * (AIM * self.bound / worst) ** (1 / CURVE)
        return self._move(max(self.least, int(better * 100) / 100), found)

    def _move(self, sparsity: float, reason: str) -> Decision:
        reason = f"{reason}: sparsity {self.sparsity:g} -> {sparsity:g}"
        self.sparsity = sparsity
        return Decision(sparsity, reason)
