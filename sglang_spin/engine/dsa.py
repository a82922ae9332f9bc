"""DSA indexer metadata over the kept pages only (DeepSeek-V3.2, GLM-5)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import sglang.kernels.ops.attention.dsv4.topk as topk_module
import sglang.srt.layers.attention.dsa.utils as dsa_utils
from sglang.srt.layers.attention.dsa.dsa_indexer_metadata import DSAIndexerMetadata
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Budgets
from sglang_spin.core.step import Plan
from sglang_spin.engine.by_class import by_class
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
    """What the engine's kernels are told of a layer's compact lengths in one step.

    lengths: int32 [rows]. newest: int32 [requests], the longest row of each. by_row: int32
    [rows, 1], or [requests, verify_rows] where the scorer takes all rows of a request at once, all
    with `newest`. schedule: of the scorer for exactly by_row, since a stale one hangs. topk: of all
    rows. All contiguous.
    """

    lengths: Tensor
    newest: Tensor
    by_row: Tensor
    schedule: Tensor | None
    topk: Tensor


def compact_metadata(
    stock: Any, runtime: Runtime, layer: int, forward_batch: Any, verify_rows: int = 1
) -> SpinIndexerMetadata:
    """Replace what the indexer scores and selects from; attention keeps reading the stock metadata.

    The step begins at the first indexer layer, where the scorer's schedules and the top-k plans of
    all layers are built: one, or one for each class of layers that keep the same number of blocks.
    verify_rows: rows of each request, request-major, in a batch that verifies drafts.
    """
    attn = stock.attn_metadata
    if runtime.is_first_layer(layer):
        # of a request's rows, which share their pages, the first
        table, lengths = attn.real_page_table, attn.cache_seqlens_int32
        if verify_rows > 1:
            table, lengths = table[::verify_rows], attn.dsa_seqlens_expanded[::verify_rows]
        plan = runtime.begin(table, lengths, forward_batch.req_pool_indices, verify_rows)
        assert runtime.state is not None
        runtime.engine_plans = engine_plans(stock, plan, runtime.state.budgets)
    assert runtime.plan is not None
    slot = runtime.layer_slots[layer]
    plan, engine_plan = runtime.plan, runtime.engine_plans[slot]
    compact_attn = dataclasses.replace(
        attn,
        real_page_table=_row_pages(plan, slot),
        cache_seqlens_int32=engine_plan.newest,
        dsa_seqlens_expanded=engine_plan.lengths,
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


def engine_plans(stock: Any, plan: Plan, budgets: Budgets) -> list[EnginePlan]:
    """Of each layer. Layers of a class have the same lengths, so what the engine plans from them is
    built once a class and then handed to each layer by its class, which is data on the device."""
    layers, alike = plan.lengths.shape[0], budgets.classes == 1
    each = plan.lengths[:1] if alike else plan.lengths.index_select(0, budgets.member)
    newest, by_row = _scored(stock, each, plan.verify_rows)
    schedules: list[Any] = [None] * len(each)
    if stock.paged_mqa_schedule_metadata is not None:
        build, count = dsa_utils.resolve_paged_mqa_logits_metadata_fn(), dsa_utils.resolve_num_sms()
        schedules = [build(rows, BLOCK, count) for rows in by_row]
    topk = [topk_module.plan_topk_v2(lengths) for lengths in each]
    if alike:
        return [EnginePlan(each[0], newest[0], by_row[0], schedules[0], topk[0])] * layers
    newest, by_row = _scored(stock, plan.lengths, plan.verify_rows)
    planned = by_class(schedules, budgets), by_class(topk, budgets)
    return list(map(EnginePlan, plan.lengths, newest, by_row, *planned))


def _scored(stock: Any, lengths: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """EnginePlan's newest and by_row for lines of lengths: int32 [lines, ...]."""
    newest = lengths if n == 1 else lengths[:, n - 1 :: n].contiguous()
    stock_lengths = stock.paged_mqa_ctx_lens_2d
    if n > 1 and stock_lengths is not None and stock_lengths.shape[1] == n:
        return newest, newest.unsqueeze(-1).expand(-1, -1, n).contiguous()
    return newest, lengths.unsqueeze(-1)
