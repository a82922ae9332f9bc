"""CPU form: the step as compiled loops, for machines without a GPU.

The torch form is some ninety small operators a step; on a CPU their dispatch costs more than their
work. Same bits as the reference; work bounded by each row's blocks; row 0 is not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit, types

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.fold_select import numba_passes as row_pass
from sglang_spin.kernels.fold_select import numba_rows as request

if TYPE_CHECKING:
    from torch import Tensor

_F32, _I32, _I64, _FLAG = types.float32, types.int32, types.int64, types.boolean
# declared, so that importing compiles (once a machine) and no decode step has to
_SIGNATURE = types.void(
    types.Tuple((_F32[:, :, ::1], _F32[:, :, ::1], _I32[:, :, :, ::1])),
    _F32[:, ::1],
    types.Tuple((_I32[:, ::1], _I32[::1])),
    types.Tuple((_FLAG[::1], _I32[::1], _I32[::1], _I32[::1], _I32[::1])),
    types.UniTuple(_I64[::1], 3),
    types.Tuple((_I32[:, :], _I32[:], _I64[:])),
    types.Tuple((_I32[:, :, :], _I32[:, :, :], _I32[:, :])),
    types.Tuple((_FLAG[:], types.uint8[:, :, :], _I64, _I64)),
    types.UniTuple(_F32, 3),
    types.Tuple((_FLAG, _FLAG, _FLAG, _I64, _I64, _I64)),
)


@njit(_SIGNATURE, cache=True)
def _step(history, prior, budgets, rows_state, totals, batch, out, audits, weights, flags):
    vertical, distance, stash = history
    fresh, generation, step, stashed, verified = rows_state
    table_of, layer_class = budgets
    kept_total, seen_total, scalars = totals
    table, lengths, owners = batch
    pages, blocks, ends = out
    audited, marks, every, stride = audits
    diagonal, random, fill, seed, ratio, more = flags
    scores = np.empty(table.shape[1], np.float32)
    for i in range(owners.shape[0]):
        row, length = owners[i], lengths[i]
        extent = request.extent(length, more, ratio, len(scores))
        count, live = extent[1], row != 0
        seen = request.seen(live, length, stashed[row], verified[row], ratio)
        started, seeded, budget, cold = live and fresh[row], 0, 0, 0
        due = live and row_pass.due(row, generation[row], step[row], every, stride)
        for layer in range(vertical.shape[0]):
            v, d, r = vertical[layer, row], distance[layer, row], stash[0, layer, row]
            row_pass.fold(v, d, scores, (stash, layer, row), seen, weights, diagonal)
            if started:
                seeded = row_pass.seed(v, r, prior[layer], table[i], count)
            row_pass.predict(scores, v, d, r, extent, weights[2], diagonal)
            if random:
                row_pass.draw(scores, count, seed, generation[row], step[row], layer)
            line = pages[layer, i], blocks[layer, i], marks[layer, i]
            bounds = table_of[0, count], table_of[layer_class[layer], count]
            kept = row_pass.select(scores, r, table[i], extent, bounds, live, due, line)
            budget, cold, full = kept
            if fill:
                pages[layer, i, budget:], blocks[layer, i, budget:] = table[i, 0], 0
            kept_total[layer] += budget * live
            seen_total[layer] += count * live
            if layer == 0 or len(table_of) > 1:
                request.write_lengths(ends[layer], i, length, count - budget, more, ratio)
        audited[i] = full
        row_pass.count_start(scalars, started, count, seeded)
        if live:
            request.finish(rows_state, row, length, min(more + 1, stash.shape[0]))
            scalars[5] += cold
    scalars[0] += np.any(owners != 0)


def begin(
    state: SpinState, page_table: Tensor, lengths: Tensor, out: Plan, fill_tail: bool
) -> None:
    """Run the step. out.request_rows is an input, the rest of out is written."""
    history, config = state.history, state.config
    assert isinstance(history, BlockHistory)
    alpha, rows = history.alpha, (state.shape.ratio, out.verify_rows - 1)
    _step(
        (history.vertical.numpy(), history.distance.numpy(), history.stash.numpy()),
        state.prior.numpy(),
        (state.budgets.of(out.verify_rows).numpy(), state.budgets.layer_class.numpy()),
        (
            state.fresh.numpy(),
            state.generation.numpy(),
            state.step.numpy(),
            state.stashed.numpy(),
            state.verified.numpy(),
        ),
        (
            state.counters.kept.numpy(),
            state.counters.seen.numpy(),
            state.counters.scalars.numpy(),
        ),
        (page_table.numpy(), lengths.numpy(), out.request_rows.numpy()),
        (out.pages.numpy(), out.blocks.numpy(), out.lengths.numpy()),
        _audits(state, out),
        (np.float32(1 - alpha), np.float32(alpha), np.float32(history.staleness)),
        (history.diagonal, config.policy == "random", fill_tail, config.seed, *rows),
    )


def _audits(state: SpinState, out: Plan) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Flag outputs and the turn of an audit; turn 0 and flags of no width where there are none."""
    if state.audit is None or out.flags is None:
        layers, n = out.pages.shape[:2]
        return np.zeros(n, np.bool_), np.zeros((layers, n, 0), np.uint8), 0, 0
    audited, blocks = out.flags
    return audited.numpy(), blocks.numpy(), state.audit.every, state.audit.stride
