"""SPIN's block-level method in plain Python: dictionaries, one row at a time, no shared code.

Arithmetic is float32 where the method's is, so that decisions can be compared exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

F = np.float32
SUSPECT = F(2e30)


@dataclass
class Row:
    """What one request knows in one layer."""

    vertical: dict[int, np.float32] = field(default_factory=dict)
    distance: dict[int, np.float32] = field(default_factory=dict)
    age: dict[int, int] = field(default_factory=dict)
    stash: list[dict[int, np.float32]] = field(default_factory=list)
    stash_length: int = 0


class Oracle:
    """alpha, staleness, sparsity as in SpinConfig; floor: fewest kept blocks; ratio: tokens of an
    entry.

    Of a step that verifies drafts it is shown the accepted rows alone.
    """

    def __init__(
        self,
        layers: int,
        alpha: float,
        staleness: float,
        sparsity: float,
        floor: int,
        ratio: int = 1,
    ) -> None:
        self.layers, self.alpha, self.staleness = layers, alpha, staleness
        self.ratio = ratio
        self.sparsity, self.floor = sparsity, floor
        self.by_layer = [sparsity] * layers
        self.rows: dict[tuple[int, int], Row] = {}
        self.fresh: set[int] = set()
        self.prior: dict[tuple[int, int], np.float32] = {}

    def open(self, row: int) -> None:
        self.fresh.add(row)
        for layer in range(self.layers):
            self.rows[layer, row] = Row()

    def close(self, row: int, pages: list[int]) -> None:
        for layer in range(self.layers):
            state = self.rows[layer, row]
            self._fold(state)
            for block, page in enumerate(pages):
                if block in state.vertical:
                    self.prior[layer, page] = state.vertical[block]

    def drop(self, pages: list[int]) -> None:
        self.prior = {k: v for k, v in self.prior.items() if k[1] not in pages}

    def step(self, table: dict[int, list[int]], lengths: dict[int, int], more: int = 0) -> dict:
        """Kept blocks of every (layer, row). table: pages of each row's blocks; lengths: tokens.

        more: drafts behind the token that `lengths` counts; the table has their blocks too.
        """
        forced, scores = {}, {}
        for row, length in lengths.items():
            for layer in range(self.layers):
                state = self.rows[layer, row]
                if length > state.stash_length:
                    self._fold(state)
                if row in self.fresh:
                    self._seed(layer, state, table[row])
                forced[layer, row], scores[layer, row] = self._predict(state, length, more)
        kept = {}
        for row, length in lengths.items():
            count = len(table[row])
            needed = max(len(forced[layer, row]) for layer in range(self.layers))
            budgets = [max(b, needed) for b in self._budgets(count, more)]
            full = self._full(row, min(budgets), count)
            for layer in range(self.layers):
                chosen = self._choose(forced[layer, row], scores[layer, row], budgets[layer])
                state = self.rows[layer, row]
                self._note(layer, row, chosen, forced[layer, row])
                kept[layer, row] = set(range(count)) if full else chosen
                for block in range(count):
                    grown = min(state.age.get(block, 50) + 1, 50)
                    state.age[block] = 0 if block in kept[layer, row] else grown
                state.stash, state.stash_length = [], length
            self.fresh.discard(row)
        return kept

    def observe(self, layer: int, row: int, maxima: dict[int, np.float32]) -> None:
        """Block maxima of the next row of this step."""
        self.rows[layer, row].stash.append(maxima)

    def _budgets(self, count: int, more: int) -> list[int]:
        """By layer; in all no more than `sparsity` in every layer would keep, for which the largest
        are cut to one size."""

        def kept(sparsity: float) -> int:
            skip = math.floor(sparsity * count + 1e-9)
            return min(count, max(self.floor + (more > 0), count - skip))

        own, total = [kept(s) for s in self.by_layer], kept(self.sparsity) * self.layers
        sizes = range(count + 1)
        size = max(n for n in sizes if sum(min(n, budget) for budget in own) <= total)
        return [min(size, budget) for budget in own]

    def _full(self, row: int, fewest: int, count: int) -> bool:
        """Whether all is kept of a row whatever is chosen; fewest: blocks that a layer may keep."""
        return False

    def _note(self, layer: int, row: int, chosen: set[int], forced: set[int]) -> None:
        """Hear what the prediction of a row is."""

    def _blocks(self, tokens: int) -> int:
        return -(-(tokens // self.ratio) // 64)

    def _fold(self, state: Row) -> None:
        for i, maxima in enumerate(state.stash):
            newest = self._blocks(state.stash_length + i) - 1
            for block, score in maxima.items():
                self._average(state.vertical, block, score)
                self._average(state.distance, newest - block, score)
        state.stash, state.stash_length = [], 0

    def _average(self, table: dict[int, np.float32], key: int, score: np.float32) -> None:
        old = table.get(key)
        if old is None or old == SUSPECT:
            table[key] = score
        elif score != SUSPECT:
            table[key] = old * F(1 - self.alpha) + score * F(self.alpha)

    def _seed(self, layer: int, state: Row, pages: list[int]) -> None:
        for block, page in enumerate(pages):
            if (layer, page) in self.prior:
                state.vertical[block] = self.prior[layer, page]
                state.age[block] = 0

    def _predict(self, state: Row, length: int, more: int) -> tuple[set[int], dict]:
        """The best score that a block gets in any of the rows."""
        scores: dict[int, np.float32] = {}
        for i in range(more + 1):
            for block, score in self._of_row(state, self._blocks(length + i)).items():
                scores[block] = max(score, scores.get(block, score))
        count = self._blocks(length + more)
        pinned = {0, count - 1} | ({max(0, count - 2)} if more else set())
        forced = pinned | (set(range(count)) - set(scores))
        trusted = [b for b, score in scores.items() if score != SUSPECT]
        unit = _spread([scores[b] for b in trusted]) * F(self.staleness)
        for block in trusted:
            scores[block] = scores[block] + np.sqrt(F(state.age.get(block, 50))) * unit
        return forced, scores

    @staticmethod
    def _of_row(state: Row, count: int) -> dict[int, np.float32]:
        scores = {}
        for block, v in state.vertical.items():
            if block < count:
                d = state.distance.get(count - 1 - block)
                lone = d is None or SUSPECT in (v, d)
                scores[block] = v if lone else (v + d) * F(0.5)
        return scores

    @staticmethod
    def _choose(forced: set[int], scores: dict[int, np.float32], budget: int) -> set[int]:
        ranked = sorted((b for b in scores if b not in forced), key=lambda b: (-scores[b], b))
        return forced | set(ranked[: budget - len(forced)])


def _spread(values: list[np.float32]) -> np.float32:
    if not values or max(values) - min(values) <= F(1e-30):
        return F(0)
    low, extent = min(values), max(values) - min(values)
    scale = F(32768) / extent
    levels = [int((v - low) * scale) for v in values]
    variance = len(levels) * sum(x * x for x in levels) - sum(levels) ** 2
    return np.sqrt(np.int64(variance).astype(F)) / F(len(levels)) * (extent / F(32768))
