"""Reading the device's counters from a serving loop that must not wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang_spin.core.totals import Totals, pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import SpinState

READ_EVERY = 32  # decode forwards from one copy to the next
READ_LAG = 8  # decode forwards until a copy is looked at: it has long arrived then


class Reader:
    """Copies the counters every READ_EVERY forwards and hands them on READ_LAG forwards later.

    Counted in forwards, not in time: the ranks of a tensor-parallel group run the same forwards, so
    they read the same totals in the same step, and what is decided from them is the same.
    """

    def __init__(self, state: SpinState) -> None:
        self.state = state
        self.forwards = 0
        self.pending: tuple[Tensor, Any] | None = None
        self.delivered = -1
        size = pack(state).shape[0]
        self.pinned = (
            torch.empty(size, dtype=torch.int64, pin_memory=True)
            if state.counters.kept.is_cuda
            else None
        )

    def after_forward(self) -> Totals | None:
        """Call after each decode forward, on its stream. The totals of a copy when it is due."""
        self.forwards += 1
        phase = self.forwards % READ_EVERY
        if phase == 0:
            self.pending = self._copy()
        if phase != READ_LAG or self.pending is None:
            return None
        (vector, event), self.pending = self.pending, None
        if event is not None:
            event.synchronize()
        return _numbers(self.state, vector)

    def at_rest(self) -> Totals | None:
        """The totals if a forward ran after the last call, for a scheduler without work."""
        if self.delivered == self.forwards:
            return None
        self.delivered = self.forwards
        return totals_now(self.state)

    def _copy(self) -> tuple[Tensor, Any]:
        vector = pack(self.state)
        if self.pinned is None:
            return vector, None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.pinned.copy_(vector, non_blocking=True)
        event.record()
        return self.pinned, event


def totals_now(state: SpinState) -> Totals:
    """The totals at this moment. Waits for the device."""
    if state.counters.kept.is_cuda:
        torch.cuda.synchronize()
    return _numbers(state, pack(state).cpu())


def _numbers(state: SpinState, vector: Tensor) -> Totals:
    return unpack(vector, state.shape.layers, state.shape.index_topk)
