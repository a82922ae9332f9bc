"""CPU form: block maxima as compiled loops, for machines without a GPU. Row 0 is not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, types

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SCORE_LIMIT, SUSPECT, BlockHistory
from sglang_spin.core.step import Plan, SpinState

if TYPE_CHECKING:
    from torch import Tensor

LIMIT, UNTRUSTED = np.float32(SCORE_LIMIT), np.float32(SUSPECT)


@njit(cache=True)
def _maximum(scores, full):
    """Largest score, or UNTRUSTED; a partial block counts its missing entries as -LIMIT."""
    best = np.float32(-np.inf) if full else -LIMIT
    strange = False
    for score in scores:
        strange |= np.isnan(score)
        best = max(best, score)
    if strange or not abs(best) <= LIMIT:
        return UNTRUSTED
    return best + np.float32(0.0)


# declared, so that importing compiles (once a machine) and no decode step has to
_SIGNATURE = types.void(
    types.int32[:, :, :],
    types.float32[:, :],
    types.int64[:],
    types.int32[:],
    types.int32[:, :],
)


@njit(_SIGNATURE, cache=True)
def _stash(stash, logits, owners, lengths, blocks):
    """stash: int32 [kept rows of a step, request rows, blocks]; further rows are not kept."""
    rows = lengths.shape[0] // max(1, owners.shape[0])
    for i in range(owners.shape[0]):
        for j in range(min(rows, stash.shape[0]) if owners[i] else 0):
            row = i * rows + j
            for column in range((lengths[row] + BLOCK - 1) // BLOCK):
                first, last = column * BLOCK, min((column + 1) * BLOCK, lengths[row])
                best = _maximum(logits[row, first:last], last - first == BLOCK)
                stash[j, owners[i], blocks[i, column]] = np.float32(best).view(np.int32)


def stash(state: SpinState, layer: int, logits: Tensor, plan: Plan) -> None:
    """Write the block maxima of one layer into the history's stash."""
    history = state.history
    assert isinstance(history, BlockHistory)
    _stash(
        history.stash[:, layer].numpy(),
        logits.numpy(),
        plan.request_rows.numpy(),
        plan.lengths[layer].numpy(),
        plan.blocks[layer].numpy(),
    )
