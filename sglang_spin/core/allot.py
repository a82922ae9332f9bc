"""Dividing a total among layers so that the worst expected miss is as small as it can be.

What a layer misses is taken to grow as its curve times its sparsity to the power CURVE. Layers form
at most CLASSES classes, and a class gets what the layer in it with the steepest curve needs.
"""

from __future__ import annotations

from collections.abc import Callable

from sglang_spin.core.budget import CLASSES, Allotment

CURVE = 2.0  # measured traces: 2 to 2.5
HALVINGS = 40  # of an interval
GRAIN = 10_000  # of a sparsity: it is a whole number of so many parts, rounded down


class Division:
    """Sparsities by expected miss: every layer gets the largest at which it misses no more.

    curves: each layer's miss at sparsity 1, above 0. least, most: limits of a layer's sparsity.
    """

    def __init__(self, curves: list[float], least: float, most: float) -> None:
        self.curves, self.least, self.most = curves, least, most

    def mean_at(self, miss: float) -> float:
        """Mean sparsity of the layers when the worst is expected to miss so much."""
        wanted = self._wanted(miss)
        return _mean([wanted[i] for i in _leaders(wanted)])

    def with_mean(self, sparsity: float) -> Allotment:
        """The division whose mean sparsity is this one, which must be within the limits."""
        even = _solve(lambda miss: _mean(self._wanted(miss)), sparsity, self._most_miss())
        # who leads a class hardly depends on the total, so the classes are formed once
        leaders = _leaders(self._wanted(even))

        def mean(miss: float) -> float:
            wanted = self._wanted(miss)
            return _mean([wanted[i] for i in leaders])

        wanted = self._wanted(_solve(mean, sparsity, self._most_miss()))
        by_layer = [int(wanted[i] * GRAIN) / GRAIN for i in leaders]
        classes = sorted(set(by_layer), reverse=True)
        if len(classes) == 1:
            return Allotment.uniform(sparsity, len(by_layer))
        return Allotment(sparsity, tuple(classes), tuple(classes.index(s) for s in by_layer))

    def _most_miss(self) -> float:
        most: float = max(self.curves) * self.most**CURVE
        return most

    def _wanted(self, miss: float) -> list[float]:
        free = [(miss / curve) ** (1 / CURVE) for curve in self.curves]
        return [min(max(s, self.least), self.most) for s in free]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _solve(grows: Callable[[float], float], value: float, end: float) -> float:
    """Where in [0, end] a growing function first reaches a value; end if it never does."""
    low, high = 0.0, end
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < value else (low, middle)
    return high


def _leaders(wanted: list[float]) -> list[int]:
    """For each layer the one whose sparsity its class takes: the lowest in the class.

    Of all ways to form at most CLASSES classes, the one that gives up least of what was wanted.
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    ranked = [wanted[i] for i in order]
    n = len(ranked)
    # best[k][i]: most sparsity in the first i layers with k classes, and where the last one begins
    best = [[(0.0, 0)] + [(-1.0, 0)] * n]
    for _ in range(min(CLASSES, n)):
        last = best[-1]
        row = [(0.0, 0)]
        for i in range(1, n + 1):
            row.append(max((last[j][0] + (i - j) * ranked[j], -j) for j in range(i)))
        best.append([(total, -j) for total, j in row])
    leaders, end = [0] * n, n
    for k in range(len(best) - 1, 0, -1):
        start = best[k][end][1]
        for i in range(start, end):
            leaders[order[i]] = order[start]
        end = start
    return leaders
