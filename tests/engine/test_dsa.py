"""The real indexer metadata and top-k of SGLang, over a compact page table."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Shape
from sglang_spin.engine import runtime as runtimes

TOPK, PAGES, LAYERS = 128, 90, 2
LENGTHS = (1, 63, 64, 65, 700, 1601, 2048)
ROWS = list(range(1, len(LENGTHS) + 1))


@pytest.fixture(scope="module", autouse=True)
def _cpu_kernels() -> None:
    from sglang_spin.cpu import patches

    patches.platform.install()
    patches.install_kernels()


@pytest.fixture(name="table")
def _table() -> torch.Tensor:
    return random_table()


def random_table() -> torch.Tensor:
    """Distinct pages per row, stale numbers past the row's end."""
    generator = torch.Generator().manual_seed(1)
    width = -(-max(LENGTHS) // BLOCK)
    rows = [torch.randperm(PAGES, generator=generator)[:width] for _ in LENGTHS]
    return torch.stack(rows).int()


def _runtime(policy: str, sparsity: float, layers: int = LAYERS, **options: Any) -> Any:
    from sglang_spin.core.step import SpinState

    config = SpinConfig(enabled=True, policy=policy, sparsity=sparsity, **options)
    runtime = runtimes.Runtime(config)
    shape = Shape(layers, len(LENGTHS) + 1, 33, PAGES, TOPK, verify_rows=3)
    runtime.state = SpinState(runtime.config, shape)
    runtime.state.open_rows(torch.tensor(ROWS))
    runtime.layer_slots = {5 + 4 * slot: slot for slot in range(layers)}
    return runtime


def _divided() -> Any:
    """Five layers in four classes, none of whose rows is audited."""
    runtime = _runtime("spin", 0.5, layers=5, audit_every=32768, miss_slo=0.05)
    runtime.state.budgets.set(Allotment(0.5, (0.7, 0.6, 0.5, 0.1), (2, 0, 3, 1, 1)))
    return runtime


def _stock(table: torch.Tensor, lengths: torch.Tensor, verify_rows: int = 1) -> Any:
    """Metadata as DeepseekSparseAttnBackend makes it for a decode batch, or to verify drafts.

    table, lengths: of every row; rows of a request follow each other.
    """
    from sglang.kernels.ops.attention.dsv4.topk import plan_topk_v2
    from sglang.srt.layers.attention.dsa.dsa_indexer_metadata import DSAIndexerMetadata
    from sglang.srt.layers.attention.dsa.dsa_topk_backend import (
        DSATopKBackend,
        TopkTransformMethod,
    )
    from sglang.srt.layers.attention.dsa_backend import DSAMetadata

    rows = len(lengths)
    attn = DSAMetadata(
        page_size=BLOCK,
        cache_seqlens_int32=lengths[verify_rows - 1 :: verify_rows],
        max_seq_len_q=1,
        max_seq_len_k=int(lengths.max()),
        cu_seqlens_q=torch.arange(rows + 1).int(),
        cu_seqlens_k=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
        page_table_1=None,
        real_page_table=table,
        dsa_cache_seqlens_int32=lengths.clamp(max=TOPK),
        dsa_cu_seqlens_q=torch.arange(rows + 1).int(),
        dsa_cu_seqlens_k=torch.arange(rows + 1).int(),
        dsa_extend_seq_lens_list=[verify_rows] * (rows // verify_rows),
        dsa_seqlens_expanded=lengths,
        topk_v2_plan=plan_topk_v2(lengths),
        paged_mqa_ctx_lens_2d=lengths.view(-1, 1),
    )
    return DSAIndexerMetadata(
        attn_metadata=attn,
        topk_transform_method=TopkTransformMethod.PAGED,
        topk_backend=DSATopKBackend.SGL_KERNEL,
        paged_mqa_schedule_metadata=torch.zeros(2, 2, dtype=torch.int32),
        paged_mqa_ctx_lens_2d=attn.paged_mqa_ctx_lens_2d,
    )


def _compact_logits(plan: Any, layer: int, truth: torch.Tensor) -> torch.Tensor:
    """The scorer's output on the compact table: the true score of each kept entry, NaN past it."""
    rows, width = plan.blocks.shape[1:]
    slots = plan.blocks[layer].long()[..., None] * BLOCK + torch.arange(BLOCK)
    logits = truth.gather(1, slots.view(rows, -1).clamp(max=truth.shape[1] - 1))
    past = torch.arange(width * BLOCK) >= plan.lengths[layer, :, None]
    return logits.masked_fill(past, float("nan")).contiguous()


def _batch(step: int) -> tuple[torch.Tensor, Any]:
    lengths = torch.tensor(LENGTHS, dtype=torch.int32).clamp(max=2048 - 8) + step
    return lengths, SimpleNamespace(req_pool_indices=torch.tensor(ROWS))


@pytest.mark.parametrize(("policy", "sparsity"), [("dense", 0.4), ("spin", 0.0)])
def test_keeping_everything_selects_the_same_slots(
    table: torch.Tensor, policy: str, sparsity: float
) -> None:
    """Top-k of every layer and step equals stock's, slot for slot."""
    from sglang_spin.engine.dsa import compact_metadata

    runtime = _runtime(policy, sparsity)
    generator = torch.Generator().manual_seed(2)
    for step in range(3):
        lengths, batch = _batch(step)
        stock = _stock(table, lengths)
        for layer in runtime.layer_slots:
            truth = torch.randn(len(LENGTHS), table.shape[1] * BLOCK, generator=generator).relu()
            compact = compact_metadata(stock, runtime, layer, batch)
            ours = compact.topk_transform(truth.clone(), TOPK)
            assert torch.equal(ours, stock.topk_transform(truth, TOPK))


@pytest.mark.parametrize("divided", [False, True], ids=["alike", "by class"])
def test_skipping_selects_the_best_of_the_kept_pages(table: torch.Tensor, divided: bool) -> None:
    """With pages skipped, the physical slots are the top-k over the kept pages, by an own sort."""
    from sglang_spin.engine.dsa import compact_metadata

    runtime = _divided() if divided else _runtime("spin", 0.5)
    generator = torch.Generator().manual_seed(3)
    for step in range(4):
        lengths, batch = _batch(step)
        stock = _stock(table, lengths)
        for layer, slot in runtime.layer_slots.items():
            truth = torch.randn(len(LENGTHS), table.shape[1] * BLOCK, generator=generator)
            compact = compact_metadata(stock, runtime, layer, batch)
            plan = runtime.plan
            found = compact.topk_transform(_compact_logits(plan, slot, truth), TOPK)
            for row, length in enumerate(lengths.tolist()):
                count = -(-int(plan.lengths[slot, row]) // BLOCK)
                blocks = plan.blocks[slot, row, :count].tolist()
                entries = [
                    e for b in blocks for e in range(b * BLOCK, min((b + 1) * BLOCK, length))
                ]
                best = sorted(entries, key=lambda e: -truth[row, e].item())[:TOPK]
                want = {int(table[row, e // BLOCK]) * BLOCK + e % BLOCK for e in best}
                got = [s for s in found[row].tolist() if s >= 0]
                assert set(got) == want
                assert len(got) == min(length, TOPK)
    assert int(plan.lengths[0, -1]) < int(lengths[-1])
    assert len(set(plan.lengths[:, -1].tolist())) == (4 if divided else 1)


def test_attention_reads_the_stock_metadata(table: torch.Tensor) -> None:
    """Only the indexer's copy is compact; what attention reads stays as the engine built it."""
    from sglang_spin.engine.dsa import compact_metadata

    lengths, batch = _batch(0)
    stock = _stock(table, lengths)
    compact = compact_metadata(stock, _runtime("spin", 0.5), 5, batch)
    assert stock.attn_metadata.real_page_table is table
    assert torch.equal(compact.attn_metadata.dsa_cache_seqlens_int32, lengths.clamp(max=TOPK))
    assert compact.get_dsa_extend_len_cpu() == [1] * len(LENGTHS)
    assert torch.equal(compact.paged_mqa_ctx_lens_2d[:, 0], compact.get_seqlens_int32())


def _verify_batch(table: torch.Tensor, step: int, n: int) -> tuple[torch.Tensor, ...]:
    first = torch.tensor(LENGTHS, dtype=torch.int32).clamp(max=2048 - 16) + 2 * step
    return table.repeat_interleave(n, 0), (first[:, None] + torch.arange(n)).flatten().int()


def test_verifying_with_every_page_kept_selects_the_same_slots(table: torch.Tensor) -> None:
    """Top-k of every row of a verify step equals stock's, slot for slot."""
    from sglang_spin.engine.dsa import compact_metadata

    runtime, n = _runtime("dense", 0.4), 3
    batch = SimpleNamespace(req_pool_indices=torch.tensor(ROWS))
    generator = torch.Generator().manual_seed(4)
    for step in range(3):
        pages, lengths = _verify_batch(table, step, n)
        stock = _stock(pages, lengths, n)
        for layer in runtime.layer_slots:
            truth = torch.randn(len(lengths), pages.shape[1] * BLOCK, generator=generator).relu()
            compact = compact_metadata(stock, runtime, layer, batch, n)
            assert torch.equal(compact.get_seqlens_expanded(), lengths)
            assert torch.equal(compact.get_seqlens_int32(), lengths[n - 1 :: n])
            ours = compact.topk_transform(truth.clone(), TOPK)
            assert torch.equal(ours, stock.topk_transform(truth, TOPK))


@pytest.mark.parametrize("per_request", [False, True], ids=["row by row", "request by request"])
def test_verify_rows_share_pages_and_keep_their_lengths(
    table: torch.Tensor, per_request: bool
) -> None:
    """Rows of a request get the same pages, each its own end; the scorer gets them in its shape."""
    from sglang_spin.engine.dsa import compact_metadata

    runtime, n = _runtime("spin", 0.5), 3
    batch = SimpleNamespace(req_pool_indices=torch.tensor(ROWS))
    generator = torch.Generator().manual_seed(5)
    for step in range(3):
        pages, lengths = _verify_batch(table, step, n)
        stock = _stock(pages, lengths, n)
        if per_request:
            newest = lengths[n - 1 :: n].view(-1, 1).expand(-1, n).contiguous()
            stock = dataclasses.replace(stock, paged_mqa_ctx_lens_2d=newest)
        for layer in runtime.layer_slots:
            compact = compact_metadata(stock, runtime, layer, batch, n)
            truth = torch.randn(len(lengths), pages.shape[1] * BLOCK, generator=generator)
            compact.topk_transform(truth, TOPK)
    rows = compact.get_page_table_64().view(len(ROWS), n, -1)
    assert torch.equal(rows, rows[:, :1].expand_as(rows))
    own = compact.get_seqlens_expanded().view(-1, n)
    assert torch.equal(own[:, 1:] - own[:, :-1], torch.ones(len(ROWS), n - 1, dtype=torch.int32))
    assert int(own[-1, -1]) < int(lengths[-1])
    scored = compact.paged_mqa_ctx_lens_2d
    assert torch.equal(scored, own[:, -1:].expand(-1, n) if per_request else own.reshape(-1, 1))
