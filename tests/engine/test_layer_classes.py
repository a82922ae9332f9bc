"""What the engine plans from lengths, where layers have lengths by class: DSA and C4 metadata."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Plan, Shape, SpinState
from tests.engine import test_dsa as dsa
from tests.engine import test_v4 as v4


@pytest.fixture(scope="module", autouse=True)
def _cpu_kernels() -> None:
    from sglang_spin.cpu import patches

    patches.platform.install()
    patches.install_kernels()


class _Planner:
    """Stands for the engine's schedule and top-k plan; what it returns tells the lengths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sglang.kernels.ops.attention.dsv4.topk as topk
        import sglang.srt.layers.attention.dsa.utils as utils

        self.built = 0
        monkeypatch.setattr(utils, "resolve_paged_mqa_logits_metadata_fn", lambda: self.schedule)
        monkeypatch.setattr(utils, "resolve_num_sms", lambda: 7)
        monkeypatch.setattr(topk, "plan_topk_v2", self.plan)

    def schedule(self, lengths: Tensor, block: int, processors: int) -> Tensor:
        """int32 [processors + 1, 2], as DeepGEMM's."""
        assert lengths.is_contiguous()
        assert block == BLOCK
        self.built += 1
        return lengths.sum().int() + torch.arange(2 * processors + 2).view(-1, 2).int()

    @staticmethod
    def plan(lengths: Tensor) -> Tensor:
        """int32 [rows + 1, 2], as plan_topk_v2's."""
        assert lengths.is_contiguous()
        return torch.nn.functional.pad(lengths, (1, 0))[:, None].repeat(1, 2)


@pytest.mark.parametrize("verify_rows", [1, 3])
@pytest.mark.parametrize("divided", [False, True], ids=["alike", "by class"])
def test_each_layer_gets_the_plans_of_its_own_lengths(
    monkeypatch: pytest.MonkeyPatch, verify_rows: int, divided: bool
) -> None:
    """Schedule and top-k plan of every layer are those of its lengths, built once a class, and
    follow the layer as its class changes."""
    from sglang_spin.engine.dsa import compact_metadata

    runtime = dsa._divided() if divided else dsa._runtime("spin", 0.5, layers=5)
    planner, table = _Planner(monkeypatch), dsa.random_table()
    batch = SimpleNamespace(req_pool_indices=torch.tensor(dsa.ROWS))
    for step in range(3):
        pages, lengths = dsa._verify_batch(table, step, verify_rows)
        stock, planner.built = dsa._stock(pages, lengths, verify_rows), 0
        for layer, slot in runtime.layer_slots.items():
            compact = compact_metadata(stock, runtime, layer, batch, verify_rows)
            own, attn = runtime.plan.lengths[slot], compact.attn_metadata
            by_row, scheduled = compact.paged_mqa_ctx_lens_2d, compact.paged_mqa_schedule_metadata
            assert torch.equal(attn.dsa_seqlens_expanded, own)
            assert torch.equal(attn.cache_seqlens_int32, own[verify_rows - 1 :: verify_rows])
            assert torch.equal(by_row, own.view(-1, 1))
            assert torch.equal(attn.topk_v2_plan, planner.plan(own))
            assert torch.equal(scheduled, planner.schedule(own.view(-1, 1), BLOCK, 7))
            for given in (own, attn.cache_seqlens_int32, by_row, attn.topk_v2_plan, scheduled):
                assert given.is_contiguous()
            truth = torch.zeros(len(lengths), pages.shape[1] * BLOCK)
            runtime.observe(layer, truth, runtime.plan)
        assert planner.built - len(runtime.layer_slots) == (4 if divided else 1)
        if divided:
            runtime.state.budgets.set(Allotment(0.5, (0.7, 0.4), (step % 2, 0, 1, 0, 1)))


@pytest.mark.parametrize("fp4", [False, True])
def test_each_layer_is_scored_as_far_as_its_budget_reaches(
    monkeypatch: pytest.MonkeyPatch, fp4: bool
) -> None:
    """Two layers of different classes: lengths, schedule and top-k plan are each layer's own, built
    once a class, and follow it as its class changes."""
    import sglang.kernels.ops.attention.dsv4 as ops

    engine = v4._Engine(monkeypatch, fp4)
    config = SpinConfig(enabled=True, sparsity=0.5, audit_every=32768, miss_slo=0.05)
    c4 = v4._path(monkeypatch, config)
    told: list[Tensor] = []
    plan_of = lambda lengths: (told.append(lengths.clone()), _plan_of(lengths))[1]  # noqa: E731
    monkeypatch.setattr(ops, "plan_topk_v2", plan_of)
    for step, places in enumerate([(0, 1), (1, 0), (0, 1)]):
        c4.runtime.state.budgets.set(Allotment(0.5, (0.7, 0.3), places))
        told.clear()
        for slot, layer in enumerate(v4.LAYERS):
            engine.step(v4._tokens(step), layer, c4)
            lengths = c4.runtime.plan.lengths[slot]
            assert torch.equal(engine.scored, lengths)
            metadata = c4._steps[slot]
            assert torch.equal(metadata.topk_metadata, _plan_of(lengths))
            assert metadata.topk_metadata.is_contiguous()
        # of the stock metadata of both calls, and of both classes once
        assert len(told) == 4
    reach = c4.runtime.plan.lengths[:, -1].tolist()
    assert reach[0] < reach[1] < v4.TOKENS[-1] // 4


def test_schedules_are_handed_on_by_class() -> None:
    """What the scorer planned for a class goes to each of its layers, contiguous."""
    from sglang_spin.engine.v4 import layer_metadata

    @dataclasses.dataclass
    class Metadata:
        page_table: Tensor
        compressed_seq_lens: Tensor
        use_prefill_cuda_graph: bool = False

        def __post_init__(self) -> None:
            total = self.compressed_seq_lens.sum().int()
            self.deep_gemm_metadata = total + torch.arange(8).view(4, 2).int()
            self.topk_metadata = self.compressed_seq_lens[:, None].repeat(1, 2)

    config = SpinConfig(enabled=True, audit_every=8, miss_slo=0.05)
    budgets = SpinState(config, Shape(5, 4, 9, 30, 64, ratio=4)).budgets
    budgets.set(Allotment(0.4, (0.6, 0.4, 0.2), (2, 0, 1, 0, 2)))
    lengths = torch.tensor([[30, 3], [10, 1], [20, 2], [10, 1], [30, 3]], dtype=torch.int32)
    pages = torch.zeros(5, 2, 9, dtype=torch.int32)
    plan = Plan(pages, lengths, pages, torch.tensor([1, 2]))
    stock = Metadata(pages[0], lengths[0])
    for own, each in zip(layer_metadata(stock, plan, budgets), lengths, strict=True):
        expected = Metadata(pages[0], each)
        assert torch.equal(own.compressed_seq_lens, each)
        for name in ("deep_gemm_metadata", "topk_metadata"):
            assert torch.equal(getattr(own, name), getattr(expected, name)), name
            assert getattr(own, name).is_contiguous()


def _plan_of(lengths: Tensor) -> Tensor:
    """Stands for the top-k plan: int32 [rows + 1, 2] that tells the lengths."""
    return torch.nn.functional.pad(lengths, (1, 0))[:, None].repeat(1, 2)
