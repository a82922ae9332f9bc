"""An engine double whose entries stand for several tokens each, as on DeepSeek-V4."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan
from tests.core.engine_double import EngineDouble

RATIO = 4


class InTokens:
    """Stands where the double has its state: entry counts go in, token counts reach the state."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.tokens: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def begin(self, page_table: Tensor, entries: Tensor, rows: Tensor) -> Plan:
        lengths = [
            self.tokens.get(r, n) for r, n in zip(rows.tolist(), entries.tolist(), strict=True)
        ]
        plan: Plan = self._state.begin(page_table, torch.tensor(lengths, dtype=torch.int32), rows)
        return plan


class TokensLife:
    """Random requests of a few tokens up to several blocks; most steps complete no entry."""

    def __init__(self, state: Any, rng: np.random.Generator) -> None:
        self.state, self.rng = InTokens(state), rng
        self.engine = EngineDouble(self.state, state.shape.pages, rng)  # type: ignore[arg-type]
        self.most = (state.shape.blocks - 2) * BLOCK * RATIO

    def open(self) -> None:
        if self.engine.free_rows:
            row = int(self.rng.choice(self.engine.free_rows))
            few = self.rng.random() < 0.3
            tokens = int(self.rng.integers(1, 7 if few else self.most // 2))
            self.state.tokens[row] = tokens
            self.engine.open(row, tokens // RATIO, [])

    def close(self) -> None:
        if self.engine.pages:
            self.engine.close(int(self.rng.choice(list(self.engine.pages))), keep=0)

    def step(self) -> tuple[list[int], Plan, Tensor] | None:
        """Rows grow by a token, or a few, or (a rejected token) none."""
        rows = [r for r in self.engine.pages if self.state.tokens[r] < self.most]
        rows = [r for r in rows if self.rng.random() < 0.8]
        if not rows:
            return None
        for row in rows:
            self.state.tokens[row] += int(self.rng.choice([0, 1, 1, 1, 1, 1, 1, 170]))
            self.engine.length[row] = self.state.tokens[row] // RATIO
            self.engine.grow(row)
        plan, entries = self.engine.begin(rows, int(self.rng.integers(0, 3)), 1)
        return rows, plan, entries
