"""The operator: checks at the border, then the chosen implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_spin.kernels.border import check_scores
from sglang_spin.kernels.implementation import Impl, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import Plan, SpinState


def audit(
    state: SpinState, layer: int, logits: Tensor, plan: Plan, *, impl: Impl | None = None
) -> None:
    """Count the misses of one indexer layer (0-based) in the audited rows of a step.

    logits: fp32 [n * plan.verify_rows, >= width * 64], compact columns of `plan`, contiguous in a
    row, any row stride; entries at or past a row's compact length are never read, nor any row of a
    request beyond its first. Nothing happens in a state without audits. SpinState.add_audits
    defines every result bit.

    impl "triton" is one launch of a program per row, which ends at once where the row is not
    audited; "numba" is one compiled call on a CPU.

    Raises ValueError naming the argument, what was expected and what came.
    """
    if state.audit is None or plan.flags is None:
        return
    check_scores(layer, logits, plan)
    rows = plan.verify_rows
    if rows > 1:
        logits, plan = logits[::rows], plan._replace(lengths=plan.lengths[:, ::rows])
    chosen = resolve(impl, logits.device, numba=True)
    if logits.shape[0] == 0:
        return
    if chosen == "reference":
        state.add_audits(layer, logits, plan)
    elif chosen == "numba":
        from sglang_spin.kernels.audit import numba

        numba.add(state.audit, layer, logits, plan)
    else:
        from sglang_spin.kernels.audit import triton

        triton.add(state.audit, layer, logits, plan)
