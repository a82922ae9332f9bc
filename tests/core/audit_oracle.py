"""The miss audit in plain Python: sets of entries, one row at a time, no shared code."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tests.core.oracle import Oracle


class AuditOracle(Oracle):
    """Keeps everything where a row's turn has come, and counts what the prediction would miss.

    turn(row, generation, step): whether an audit is due, the one thing taken from the method.
    """

    def __init__(self, *arguments: Any, topk: int, turn: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.topk, self.turn = topk, turn
        self.life: Counter[int] = Counter()
        self.steps: Counter[int] = Counter()
        self.due: set[int] = set()
        self.audited: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
        self.found = [Counter() for _ in range(self.layers)]
        self.misses: list[list[int]] = [[] for _ in range(self.layers)]

    def open(self, row: int) -> None:
        super().open(row)
        self.life[row] += 1
        self.steps[row] = 0

    def step(self, table: dict, lengths: dict, more: int = 0) -> dict:
        self.audited, self.due = {}, set()
        kept = super().step(table, lengths, more)
        for row in lengths:
            self.steps[row] += 1
        return kept

    def _full(self, row: int, fewest: int, count: int) -> bool:
        if fewest < count and self.turn(row, self.life[row], self.steps[row]):
            self.due.add(row)
        return row in self.due

    def _note(self, layer: int, row: int, chosen: set[int], forced: set[int]) -> None:
        if row in self.due:
            age = self.rows[layer, row].age
            back = {b for b in chosen - forced if age.get(b, 50) > 0}
            self.audited[layer, row] = chosen, back

    def score(self, layer: int, row: int, scores: np.ndarray) -> None:
        """The true scores of a layer's row, fp32 [length]: count if it is audited."""
        if (layer, row) not in self.audited:
            return
        kept, back = self.audited[layer, row]
        number = [-np.inf if np.isnan(s) else float(s) for s in scores]
        best = sorted(range(len(number)), key=lambda e: (-number[e], e))[: self.topk]
        missed = [e for e in best if e // 64 not in kept]
        useful = {e // 64 for e in best} & back
        self.misses[layer].append(len(missed))
        self.found[layer] += Counter(
            audits=1,
            entries=len(best),
            missed=len(missed),
            returned=len(back),
            useful=len(useful),
        )
