"""DSA indexer metadata over the kept pages only (DeepSeek-V3.2, GLM-5)."""

from __future__ import annotations

import dataclasses
from typing import Any

import sglang.kernels.ops.attention.dsv4.topk as topk_module
import sglang.srt.layers.attention.dsa.utils as dsa_utils
from sglang.srt.layers.attention.dsa.dsa_indexer_metadata import DSAIndexerMetadata
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan
from sglang_spin.engine.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class SpinIndexerMetadata(DSAIndexerMetadata):  # type: ignore[misc]  # SGLang is untyped here
    """The engine's metadata with a compact page table, reporting the scores it is given."""

    spin_runtime: Runtime | None = None
    spin_layer: int = -1
    spin_plan: Plan | None = None

    def topk_transform(self, logits: Tensor, topk: int, **kwargs: Any) -> Tensor:
        """Observe the scores, then select as the engine does. logits: fp32 [rows, columns]."""
        assert self.spin_runtime is not None
        assert self.spin_plan is not None
        self.spin_runtime.observe(self.spin_layer, logits, self.spin_plan)
        result: Tensor = super().topk_transform(logits, topk, **kwargs)
        return result


def compact_metadata(
    stock: Any, runtime: Runtime, layer: int, forward_batch: Any
) -> SpinIndexerMetadata:
    """Replace what the indexer scores and selects from; attention keeps reading the stock metadata.

    The step begins at the first indexer layer: one plan serves every layer, because all of them
    keep the same number of blocks, so the scorer's schedule and the top-k plan are built once.
    """
    attn = stock.attn_metadata
    if runtime.is_first_layer(layer):
        plan = runtime.begin(
            attn.real_page_table, attn.cache_seqlens_int32, forward_batch.req_pool_indices
        )
        runtime.engine_plan = _engine_plan(stock, plan.lengths)
    assert runtime.plan is not None
    plan = runtime.plan
    schedule, topk_plan = runtime.engine_plan
    compact_attn = dataclasses.replace(
        attn,
        # a copy only where a batch is narrower than the static buffers, so never in a graph
        real_page_table=plan.pages[runtime.layer_slots[layer]].contiguous(),
        cache_seqlens_int32=plan.lengths,
        dsa_seqlens_expanded=plan.lengths,
        topk_v2_plan=topk_plan,
    )
    fields = {f.name: getattr(stock, f.name) for f in dataclasses.fields(stock)}
    fields |= {
        "attn_metadata": compact_attn,
        "paged_mqa_schedule_metadata": schedule,
        "paged_mqa_ctx_lens_2d": plan.lengths.view(-1, 1),
    }
    runtime.expect_scores(layer, plan)
    return SpinIndexerMetadata(**fields, spin_runtime=runtime, spin_layer=layer, spin_plan=plan)


def _engine_plan(stock: Any, lengths: Tensor) -> tuple[Tensor | None, Tensor]:
    """The scorer's schedule and the top-k plan of exactly these lengths: a stale schedule hangs."""
    schedule = None
    if stock.paged_mqa_schedule_metadata is not None:
        build = dsa_utils.resolve_paged_mqa_logits_metadata_fn()
        schedule = build(lengths.view(-1, 1), BLOCK, dsa_utils.resolve_num_sms())
    return schedule, topk_module.plan_topk_v2(lengths)
