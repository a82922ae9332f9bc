"""Torch form: the method's own step, its outputs copied into the workspace."""

from __future__ import annotations

from torch import Tensor

from sglang_spin.core.step import Plan, SpinState


def begin(
    state: SpinState, page_table: Tensor, lengths: Tensor, request_rows: Tensor, out: Plan
) -> None:
    """SpinState.begin with the results in `out`."""
    plan = state.begin(page_table, lengths, request_rows, out.verify_rows)
    out.pages.copy_(plan.pages)
    lines = state.shape.layers if state.budgets.classes > 1 else 1
    out.lengths[:lines].copy_(plan.lengths[:lines])
    out.blocks.copy_(plan.blocks)
    if out.flags is not None and plan.flags is not None:
        out.flags.audited.copy_(plan.flags.audited)
        out.flags.blocks.copy_(plan.flags.blocks)
