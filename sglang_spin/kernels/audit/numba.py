"""CPU form: one compiled call a layer, which only looks at the flags where no row is audited."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, types

from sglang_spin.core.audit import KEPT, RETURNED, Audit
from sglang_spin.core.block import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import Plan

LOWEST = np.float32(-np.inf)


@njit(cache=True)
def _threshold(scores, topk):
    """-> bound, ties: the top-k are all scores above bound and the first `ties` equal to it."""
    split = len(scores) - topk
    bound = np.partition(scores, split)[split]
    ties = topk
    for score in scores:
        ties -= score > bound
    return bound, ties


@njit(cache=True)
def _audit_row(logits, flags, topk, edges, tallies, histogram):
    scores = logits.copy()
    for i in range(len(scores)):
        if np.isnan(scores[i]):
            scores[i] = LOWEST
    bound, ties = _threshold(scores, topk)
    missed, returned, useful = 0, 0, 0
    for block in range((len(scores) + BLOCK - 1) // BLOCK):
        best = 0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(scores))):
            if scores[i] > bound:
                best += 1
            elif scores[i] == bound and ties > 0:
                best, ties = best + 1, ties - 1
        if not flags[block] & KEPT:
            missed += best
        if flags[block] & RETURNED:
            returned += 1
            useful += best > 0
    tallies[0] += 1
    tallies[1] += topk
    tallies[2] += missed
    tallies[3] += returned
    tallies[4] += useful
    histogram[np.searchsorted(edges, missed, side="right") - 1] += 1


# declared, so that importing compiles (once a machine) and no decode step has to
_SIGNATURE = types.void(
    types.float32[:, :],
    types.int64[:],
    types.int32[:],
    types.boolean[:],
    types.uint8[:, :],
    types.int64,
    types.int32[::1],
    types.int64[:, ::1],
    types.int32[:, ::1],
)


@njit(_SIGNATURE, cache=True)
def _add(logits, owners, lengths, audited, flags, topk, edges, tallies, histogram):
    for i in range(len(owners)):
        if audited[i]:
            row = owners[i]
            _audit_row(logits[i, : lengths[i]], flags[i], topk, edges, tallies[row], histogram[row])


def add(audit: Audit, layer: int, logits: Tensor, plan: Plan) -> None:
    """Run; arguments as api.audit has checked them."""
    assert plan.flags is not None
    _add(
        logits.numpy(),
        plan.request_rows.numpy(),
        plan.lengths[layer].numpy(),
        plan.flags.audited.numpy(),
        plan.flags.blocks[layer].numpy(),
        audit.topk,
        audit.edges.numpy(),
        audit.tallies[layer].numpy(),
        audit.histogram[layer].numpy(),
    )
