"""Torch form: the method's own stash."""

from __future__ import annotations

from torch import Tensor

from sglang_spin.core.step import Plan, SpinState


def stash(state: SpinState, layer: int, logits: Tensor, plan: Plan) -> None:
    """SpinState.observe."""
    state.observe(layer, logits, plan)
