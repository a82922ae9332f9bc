"""SPIN's own decode scorer in the engine's place: logits and block maxima from one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sglang_spin.core.step import Plan, SpinState
from sglang_spin.engine.fatal import die
from sglang_spin.kernels.paged_logits import observed_logits
from sglang_spin.kernels.paged_logits.operands import HEADS

if TYPE_CHECKING:
    from torch import Tensor


class FusedScorer:
    """Stands in for DeepGEMM's fp8_paged_mqa_logits between `expect` and `done`.

    The engine asks for its scorer once per indexer layer, between taking the layer's page table and
    handing in the logits; only in that span, and only for the target model, is this one given out.
    """

    def __init__(self, state: SpinState, heads: int) -> None:
        if heads not in HEADS:
            die(f"scorer 'fused' serves {HEADS} index heads, the model has {heads}; use 'engine'")
        self.state = state
        self._plan: Plan | None = None
        self._layer = -1
        self._scored = 0

    @property
    def expecting(self) -> bool:
        """Whether a layer of the target model is about to be scored."""
        return self._plan is not None

    def expect(self, layer: int, plan: Plan) -> None:
        """The next scores are those of an indexer layer (0-based) over this plan's pages."""
        self._layer, self._plan, self._scored = layer, plan, 0

    def done(self) -> None:
        """The logits came back; end the process if another scorer made any of them."""
        assert self._plan is not None
        rows = self._plan.lengths.shape[1]
        if self._scored != rows:
            die(
                f"{self._scored} of {rows} rows of indexer layer "
                f"{self._layer} went through SPIN's scorer; use scorer 'engine'"
            )
        self._plan = None

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        weights: Tensor,
        context_lens: Tensor,
        _table: Tensor,
        _schedule: Any,
        _max_len: int,
        clean_logits: bool = False,
    ) -> Tensor:
        """DeepGEMM's signature: q fp8 [rows, 1, heads, 128], cache [pages, 64, 1, 132],
        weights fp32 [rows, heads], context_lens int32 [rows, 1]. Returns fp32 [rows, max_len]."""
        assert self._plan is not None
        assert q.shape[1] == 1
        assert not clean_logits
        logits = observed_logits(
            self.state,
            self._layer,
            q.squeeze(1),
            cache.view(torch.uint8).view(cache.shape[0], -1),
            weights,
            self._plan,
            first=_first_row(context_lens, self._plan.lengths[self._layer]),
        )
        self._scored += q.shape[0]
        return logits


def _first_row(chunk: Tensor, lengths: Tensor) -> int:
    """Where a chunk of the rows begins: the engine scores a large batch in slices of them."""
    same = chunk.untyped_storage().data_ptr() == lengths.untyped_storage().data_ptr()
    if not same:
        die("the engine scores lengths that are not the plan's; use scorer 'engine'")
    return int(chunk.storage_offset() - lengths.storage_offset())
