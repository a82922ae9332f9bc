"""The operator: checks at the border, then the chosen implementation."""

from __future__ import annotations

from torch import Tensor

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.border import check_scores
from sglang_spin.kernels.implementation import Impl, resolve


def observe(
    state: SpinState, layer: int, logits: Tensor, plan: Plan, *, impl: Impl | None = None
) -> None:
    """Stash the scores of one indexer layer (0-based) for the next step's fold.

    logits: fp32 [n * plan.verify_rows, >= width * 64], request-major, compact columns of `plan`,
    contiguous in a row, any row stride; entries at or past a row's compact length are never read.
    Block maxima for a BlockHistory, all entries for spin-paper's SlotHistory, which has no numba
    form. Bits as SpinState.observe defines them, with two liberties of the compiled forms: row 0 is
    not written, nor is the stash of slots in blocks that were not kept, which no fold reads.

    Raises ValueError naming the argument, what was expected and what came.
    """
    check_scores(layer, logits, plan)
    blocks = isinstance(state.history, BlockHistory)
    chosen = resolve(impl, logits.device, supported=blocks or impl != "numba", numba=blocks)
    if logits.shape[0] == 0:
        return
    if chosen == "reference":
        from sglang_spin.kernels.observe import reference

        reference.stash(state, layer, logits, plan)
        return
    if chosen == "numba":
        from sglang_spin.kernels.observe import numba

        numba.stash(state, layer, logits, plan)
        return
    from sglang_spin.kernels.observe import triton

    triton.stash(state, layer, logits, plan)
