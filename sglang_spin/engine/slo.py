"""Holding the miss SLO of a running server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang_spin.core.miss_slo import MIN_AUDITS, MissSlo

if TYPE_CHECKING:
    from sglang_spin.core.step import SpinState
    from sglang_spin.core.totals import Totals

logger = logging.getLogger(__name__)


class SloKeeper:
    """Decides from the readings of a rank's own state, once enough audits have come in.

    The ranks of a tensor-parallel group read the same totals after the same forward, so they change
    their budgets between the same two steps.
    """

    def __init__(self, state: SpinState) -> None:
        self.state = state
        config = state.config
        self.slo = MissSlo(config.miss_slo, config.sparsity, state.shape.layers)
        self.judged: Totals | None = None

    def judge(self, totals: Totals) -> None:
        """On the stream of the forwards, between two of them."""
        recent = totals if self.judged is None else totals.since(self.judged)
        if recent.audits < MIN_AUDITS:
            return
        self.judged = totals
        decision = self.slo.decide([layer.miss_mean or 0.0 for layer in recent.layers])
        if decision is not None:
            logger.info("SPIN: %s", decision.reason)
            self.state.budgets.set(decision.allotment)
