"""DSA indexer metadata over the kept pages only (DeepSeek-V3.2, GLM-5)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import sglang.kernels.ops.attention.dsv4.topk as topk_module
import sglang.srt.layers.attention.dsa.utils as dsa_utils
from sglang.srt.layers.attention.dsa.dsa_indexer_metadata import DSAIndexerMetadata
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan
from sglang_spin.engine.hooks.logits import by_callback
from sglang_spin.engine.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class SpinIndexerMetadata(DSAIndexerMetadata):  # type: ignore[misc]  # SGLang is untyped here
    """The engine's metadata with a compact page table, reporting the scores it is given."""

    spin_runtime: Runtime | None = None
    spin_layer: int = -1
    spin_plan: Plan | None = None

    def observe_scores(self, logits: Tensor) -> None:
        """Hand the layer's scores to the state. logits: fp32 [rows, columns]."""
        assert self.spin_runtime is not None
        assert self.spin_plan is not None
        self.spin_runtime.observe(self.spin_layer, logits, self.spin_plan)

    def topk_transform(self, logits: Tensor, topk: int, **kwargs: Any) -> Tensor:
        """Observe the scores, unless a patched engine calls back with them; then select."""
        if not by_callback():
            self.observe_scores(logits)
        result: Tensor = super().topk_transform(logits, topk, **kwargs)
        return result


class EnginePlan(NamedTuple):
    """What the engine's kernels are told of a step's compact lengths, the same for every layer.

    newest: int32 [requests], the longest row of each. by_row: int32 [rows, 1], or [requests,
    verify_rows] where the scorer takes all rows of a request at once, all with `newest`.
    schedule: of the scorer for exactly by_row, since a stale one hangs. topk: of all rows.
    """

    newest: Tensor
    by_row: Tensor
    schedule: Tensor | None
    topk: Tensor


def compact_metadata(
    stock: Any, runtime: Runtime, layer: int, forward_batch: Any, verify_rows: int = 1
) -> SpinIndexerMetadata:
    """Replace what the indexer scores and selects from; attention keeps reading the stock metadata.

    The step begins at the first indexer layer: one plan serves every layer, because all of them
    keep the same number of blocks, so the scorer's schedule and the top-k plan are built once.
    verify_rows: rows of each request, request-major, in a batch that verifies drafts.
    """
    attn = stock.attn_metadata
    if runtime.is_first_layer(layer):
        # of a request's rows, which share their pages, the first
        table, lengths = attn.real_page_table, attn.cache_seqlens_int32
        if verify_rows > 1:
            table, lengths = table[::verify_rows], attn.dsa_seqlens_expanded[::verify_rows]
        plan = runtime.begin(table, lengths, forward_batch.req_pool_indices, verify_rows)
        runtime.engine_plan = _engine_plan(stock, plan)
    assert runtime.plan is not None
    assert runtime.engine_plan is not None
    plan, engine_plan = runtime.plan, runtime.engine_plan
    compact_attn = dataclasses.replace(
        attn,
        real_page_table=_row_pages(plan, runtime.layer_slots[layer]),
        cache_seqlens_int32=engine_plan.newest,
        dsa_seqlens_expanded=plan.lengths,
        topk_v2_plan=engine_plan.topk,
    )
    fields = {f.name: getattr(stock, f.name) for f in dataclasses.fields(stock)}
    fields |= {
        "attn_metadata": compact_attn,
        "paged_mqa_schedule_metadata": engine_plan.schedule,
        "paged_mqa_ctx_lens_2d": engine_plan.by_row,
    }
    runtime.expect_scores(layer, plan)
    return SpinIndexerMetadata(**fields, spin_runtime=runtime, spin_layer=layer, spin_plan=plan)


def _row_pages(plan: Plan, layer: int) -> Tensor:
    """int32 [rows, width], contiguous: a copy for verify steps, and for a batch narrower than the
    static buffers, which no graph has."""
    pages, n = plan.pages[layer], plan.verify_rows
    if n == 1:
        return pages.contiguous()
    return pages.unsqueeze(1).expand(-1, n, -1).reshape(-1, pages.shape[1])


def _engine_plan(stock: Any, plan: Plan) -> EnginePlan:
    lengths, n = plan.lengths, plan.verify_rows
    newest = lengths if n == 1 else lengths[n - 1 :: n].contiguous()
    by_row, stock_lengths = lengths.view(-1, 1), stock.paged_mqa_ctx_lens_2d
    if n > 1 and stock_lengths is not None and stock_lengths.shape[1] == n:
        by_row = newest.view(-1, 1).expand(-1, n).contiguous()
    schedule = None
    if stock.paged_mqa_schedule_metadata is not None:
        build = dsa_utils.resolve_paged_mqa_logits_metadata_fn()
        schedule = build(by_row, BLOCK, dsa_utils.resolve_num_sms())
    return EnginePlan(newest, by_row, schedule, topk_module.plan_topk_v2(lengths))
