"""C4 indexer over the kept pages only (DeepSeek-V4).

An index page holds 64 entries of 4 tokens each, and is the physical page of 256 tokens. Metadata is
one object a step, shared by all C4 layers and read while each of them scores, so it is exchanged
for the time of the call. Attention reads the core metadata, which stays as it is.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_spin.engine.by_class import by_class
from sglang_spin.engine.fatal import die

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.budget import Budgets
    from sglang_spin.core.step import Plan
    from sglang_spin.engine.runtime import Runtime

RATIO = 4  # tokens of an entry


class CompactC4:
    """Scores the C4 layers of decode steps over compact tables and hears their scores."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._layer = -1
        self._plan: Plan | None = None
        self._steps: list[Any] = []  # of each layer

    def score(self, indexer: Callable[[], None], backend: Any, layer: int, rows: Tensor) -> None:
        """Run `indexer` with compact metadata. rows: request rows of the batch, 0 for padding.

        Ends the process if the layer's scores were not handed in.
        """
        metadata = backend.forward_metadata
        stock = metadata.indexer_metadata
        self._begin(metadata, stock, layer, rows)
        slot = self.runtime.layer_slots[layer]
        compact = copy.copy(self._steps[slot])
        assert self.runtime.plan is not None
        # a copy only where a batch is narrower than the static buffers, so never in a graph
        compact.page_table = self.runtime.plan.pages[slot].contiguous()
        self._layer, self._plan = layer, self.runtime.plan
        metadata.indexer_metadata = compact
        try:
            indexer()
        finally:
            metadata.indexer_metadata = stock
        if self._plan is not None:
            die(f"C4 layer {layer} was scored without its top-k being seen; start with --no-spin")

    def observe(self, logits: Tensor) -> None:
        """Take the scores (fp32 [rows, columns]) that a top-k is about to select from."""
        if self._plan is None:
            return  # prefill, or a draft model
        rows = self._plan.lengths.shape[1]
        if logits.shape[0] < rows:
            die(
                f"the engine scored {logits.shape[0]} of {rows} rows of C4 layer {self._layer} at "
                "a time; lower --max-running-requests or use --no-spin"
            )
        # more rows than the batch has are padding of the queries
        self.runtime.observe(self._layer, logits[:rows], self._plan)
        self._plan = None

    def _begin(self, metadata: Any, stock: Any, layer: int, rows: Tensor) -> None:
        """At the first layer: the metadata of all of them."""
        if not self.runtime.is_first_layer(layer):
            return
        lengths = metadata.core_metadata.seq_lens_casual
        plan = self.runtime.begin(stock.page_table, lengths, rows)
        assert self.runtime.state is not None
        self._steps = layer_metadata(stock, plan, self.runtime.state.budgets)


def layer_metadata(stock: Any, plan: Plan, budgets: Budgets) -> list[Any]:
    """Compact metadata of each layer, all with the first layer's pages.

    Layers of a class have the same lengths, so the scorer's schedule and the top-k plan are built
    once a class and then handed to each layer by its class, which is data on the device.
    """
    if budgets.classes == 1:
        return [_rebuilt(stock, plan, plan.lengths[0])] * plan.lengths.shape[0]
    each = plan.lengths.index_select(0, budgets.member)
    built = [_rebuilt(stock, plan, lengths) for lengths in each]
    plans = by_class([one.topk_metadata for one in built], budgets)
    schedules = by_class([one.deep_gemm_metadata for one in built], budgets)
    layers = []
    for slot, lengths in enumerate(plan.lengths):
        own = copy.copy(built[0])
        own.compressed_seq_lens = lengths
        own.topk_metadata, own.deep_gemm_metadata = plans[slot], schedules[slot]
        layers.append(own)
    return layers


def _rebuilt(stock: Any, plan: Plan, lengths: Tensor) -> Any:
    """Building it anew makes the scorer's schedule and the top-k plan from exactly these lengths.

    lengths: int32 [rows].
    """
    return dataclasses.replace(
        stock,
        page_table=plan.pages[0].contiguous(),
        compressed_seq_lens=lengths,
        # decode scores are narrow now: no slicing of rows by free memory, whose size is asked
        use_prefill_cuda_graph=True,
    )
