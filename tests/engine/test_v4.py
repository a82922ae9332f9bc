"""The real C4 indexer of SGLang, fp8 and fp4, over a compact page table."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hooks import v4 as hooks

TOPK, PAGES = 512, 300
LAYERS = (5, 9)
TOKENS = (1, 3, 255, 256, 257, 2048, 2049, 9000, 11263)
ROWS = torch.arange(1, len(TOKENS) + 1)
WIDTH = -(-max(TOKENS) // (4 * BLOCK)) + 2


@pytest.fixture(scope="module", autouse=True)
def _cpu_kernels() -> None:
    from sglang_spin.cpu import patches

    patches.platform.install()
    patches.install_kernels()


@pytest.fixture
def c4(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hooked path at sparsity 0.5, whose end of the process is an exception here."""
    from sglang_spin.engine import v4

    def die(message: str) -> None:
        raise _Ended(message)

    monkeypatch.setattr(v4, "die", die)
    return _path(monkeypatch, SpinConfig(enabled=True, sparsity=0.5))


class _Ended(Exception):
    """The process would have ended."""


def _path(monkeypatch: pytest.MonkeyPatch, config: SpinConfig) -> Any:
    from sglang_spin.engine.v4 import CompactC4

    runtime = runtimes.Runtime(config)
    shape = Shape(len(LAYERS), len(TOKENS) + 1, WIDTH, PAGES, TOPK, ratio=4)
    runtime.state = SpinState(config, shape)
    runtime.state.open_rows(ROWS)
    runtime.layer_slots = {layer: i for i, layer in enumerate(LAYERS)}
    runtime.c4 = CompactC4(runtime)
    monkeypatch.setattr(runtimes, "_runtime", runtime)
    return runtime.c4


class _Engine:
    """Just enough of the backend and the model for forward_c4_indexer's own body to run.

    Scores are looked up by physical slot in `truth` [layer, rows, slots], so a wrong page shows.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fp4: bool) -> None:
        import sglang.kernels.ops.attention.dsv4.topk as topk
        import sglang.srt.layers.attention.dsv4.indexer as module
        from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend

        self.fp4, self.module = fp4, module
        generator = torch.Generator().manual_seed(3)
        self.truth = torch.randn(2, len(TOKENS), PAGES * BLOCK, generator=generator)
        pages = torch.randperm(PAGES - 1, generator=generator)[: WIDTH * 2] + 1
        choice = [torch.randperm(len(pages), generator=generator)[:WIDTH] for _ in TOKENS]
        self.table = torch.stack([pages[c] for c in choice]).int()
        deep_gemm = ModuleType("deep_gemm")
        deep_gemm.fp8_fp4_paged_mqa_logits = self._score  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "deep_gemm", deep_gemm)
        monkeypatch.setattr(module, "fp8_paged_mqa_logits_torch", self._score)
        watched = lambda *a: hooks._around_topk(topk.topk_transform_paged_v2, *a)  # noqa: E731
        monkeypatch.setattr(module, "topk_transform_paged_v2", watched)
        monkeypatch.setenv("SGLANG_FP8_PAGED_MQA_LOGITS_TORCH", "1")
        self.backend: Any = SimpleNamespace(
            token_to_kv_pool=SimpleNamespace(get_index_k_with_scale_buffer=self._cache),
            dsa_topk_backend=DSATopKBackend.SGL_KERNEL,
            debug_use_external_c4_sparse_indices=False,
            hisparse_coordinator=None,
            _forward_prepare_normal=self._prepare,
            _get_nonpaged_indexer_plan=lambda **_: None,
        )

    def _cache(self, layer_id: int) -> Tensor:
        self.layer = LAYERS.index(layer_id)
        return torch.zeros(1, 64 * (68 if self.fp4 else 132), dtype=torch.uint8)

    def _prepare(self, **_: Any) -> tuple[Any, Tensor]:
        rows = len(TOKENS)
        query: Any = torch.zeros(rows, 64, 128, dtype=torch.float8_e4m3fn)
        if self.fp4:
            query = (torch.zeros(rows, 64, 64, dtype=torch.int8), torch.zeros(rows, 64).int())
        return query, torch.zeros(rows, 64, 1)

    def _score(
        self, _q: Any, _kv: Tensor, _w: Tensor, lengths: Tensor, table: Tensor, *rest: Any
    ) -> Tensor:
        self.scored = lengths.flatten().clone()
        slots = table.long()[..., None] * BLOCK + torch.arange(BLOCK)
        slots = slots.flatten(1).clamp(0, self.truth.shape[-1] - 1)
        logits = self.truth[self.layer].gather(1, slots)
        past = torch.arange(logits.shape[1]) >= lengths.view(-1, 1)
        return logits.masked_fill(past, float("nan")).contiguous()

    def step(self, tokens: Tensor, layer: int, spin: Any, decode: bool = True) -> Tensor:
        """Run the indexer of a layer; returns the slots that attention would read."""
        from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata

        stock = PagedIndexerMetadata(
            page_size=256,
            compressed_page_size=64,
            page_table=self.table,
            compressed_seq_lens=tokens // 4,
            use_topk_v2=True,
        )
        out = torch.full((len(TOKENS), TOPK), -7, dtype=torch.int32)
        core = SimpleNamespace(
            positions=tokens - 1,
            seq_lens_casual=tokens,
            c4_sparse_page_indices=out,
            c4_sparse_raw_indices=None,
        )
        metadata = SimpleNamespace(indexer_metadata=stock, core_metadata=core)
        self.backend.forward_metadata, self.backend.spin_c4 = metadata, spin
        mode = SimpleNamespace(is_idle=lambda: False, is_decode=lambda: decode)
        call = {
            "x": torch.zeros(len(TOKENS), 1),
            "q_lora": torch.zeros(len(TOKENS), 1),
            "c4_indexer": SimpleNamespace(layer_id=layer, use_fp4_indexer=self.fp4),
            "forward_batch": SimpleNamespace(forward_mode=mode, req_pool_indices=ROWS),
        }
        body = self.module.C4IndexerBackendMixin.forward_c4_indexer
        hooks._around_indexer(body, self.backend, **call)
        assert metadata.indexer_metadata is stock
        return out


def _tokens(step: int) -> Tensor:
    return torch.tensor(TOKENS, dtype=torch.int32) + step


@pytest.mark.parametrize("fp4", [False, True])
def test_keeping_everything_selects_the_same_slots(
    monkeypatch: pytest.MonkeyPatch, fp4: bool
) -> None:
    """Top-k of both layers and of several steps equals stock's, slot for slot."""
    engine = _Engine(monkeypatch, fp4)
    c4 = _path(monkeypatch, SpinConfig(enabled=True, policy="dense"))
    for step in range(6):
        for layer in LAYERS:
            expected = engine.step(_tokens(step), layer, None)
            assert torch.equal(engine.step(_tokens(step), layer, c4), expected)
            assert torch.equal(engine.scored, _tokens(step) // 4)


@pytest.mark.parametrize("fp4", [False, True])
def test_skipped_blocks_are_not_scored(monkeypatch: pytest.MonkeyPatch, c4: Any, fp4: bool) -> None:
    """After one full step a row is as long as its kept blocks, and selects top-k of just those."""
    engine = _Engine(monkeypatch, fp4)
    for step in range(3):
        for layer in LAYERS:
            selected = engine.step(_tokens(step), layer, c4)
            plan = c4.runtime.plan
            pages = plan.pages[LAYERS.index(layer)]
            for row, tokens in enumerate(_tokens(step).tolist()):
                kept = -(-int(plan.lengths[LAYERS.index(layer), row]) // BLOCK)
                slots = selected[row][selected[row] >= 0]
                assert len(slots) == min(tokens // 4, TOPK)
                assert set((slots // BLOCK).tolist()) <= set(pages[row, :kept].tolist())
    blocks = -(-(_tokens(2) // 4) // BLOCK)
    assert engine.scored[-1] < _tokens(2)[-1] // 4
    assert -(-engine.scored[-1] // BLOCK) == -(-blocks[-1] // 2)
    assert c4.runtime.observed == set(LAYERS)


def test_prefill_and_drafts_are_left_alone(monkeypatch: pytest.MonkeyPatch, c4: Any) -> None:
    """Rows of a prefill are scored in full, and their scores are nobody's."""
    engine = _Engine(monkeypatch, False)
    engine.step(_tokens(0), LAYERS[0], c4, decode=False)
    assert torch.equal(engine.scored, _tokens(0) // 4)
    assert not c4.runtime.observed


def test_scores_that_pass_by_unseen_end_the_process(
    monkeypatch: pytest.MonkeyPatch, c4: Any
) -> None:
    """An engine that selects by another function would leave SPIN without scores."""
    engine = _Engine(monkeypatch, False)
    monkeypatch.setattr(engine.module, "topk_transform_paged_v2", lambda *_a: None)
    with pytest.raises(_Ended, match="without its top-k being seen"):
        engine.step(_tokens(0), LAYERS[0], c4)


def test_scores_in_slices_end_the_process(monkeypatch: pytest.MonkeyPatch, c4: Any) -> None:
    """A batch that the engine scores in parts is not taken for a whole one."""
    engine = _Engine(monkeypatch, False)
    whole = engine._score
    part = lambda *a: whole(*a)[:4]  # noqa: E731
    monkeypatch.setattr(engine.module, "fp8_paged_mqa_logits_torch", part)
    with pytest.raises(_Ended, match="scored 4 of 9 rows"):
        engine.step(_tokens(0), LAYERS[0], c4)
