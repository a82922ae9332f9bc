"""DeepseekSparseAttnBackend: allocate the state, and give the indexer compact metadata."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target
from sglang_spin.engine.target_model import is_target, layer_ids

_CLASS = "sglang.srt.layers.attention.dsa_backend:DeepseekSparseAttnBackend"
_CALLBACK = "the indexer takes its page table from a registered callback"


def _after_init(_result: None, backend: Any, model_runner: Any, *_args: Any, **_kw: Any) -> None:
    # drafts share rows and layer ids with the target; they stay dense
    backend.spin_runtime = None
    if not is_target(model_runner):
        return
    runtime = runtimes.current()
    if runtime.state is None:
        allocator = model_runner.token_to_kv_pool_allocator
        layers = _indexer_layers(model_runner.model)
        verify_rows = backend.speculative_num_draft_tokens or 1
        runtime.attach(model_runner, allocator, layers, verify_rows=verify_rows)
    backend.spin_runtime = runtime


def _indexer_layers(model: Any) -> list[int]:
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer

    return layer_ids([m for m in model.modules() if isinstance(m, Indexer)], Indexer)


def _after_metadata(result: Any, backend: Any, layer_id: int, forward_batch: Any) -> Any:
    runtime = backend.spin_runtime
    mode = forward_batch.forward_mode
    if runtime is None or not (mode.is_decode() or mode.is_target_verify()):
        return None
    from sglang_spin.engine.dsa import compact_metadata

    verify_rows = backend.speculative_num_draft_tokens if mode.is_target_verify() else 1
    return compact_metadata(result, runtime, layer_id, forward_batch, verify_rows)


HOOKS = (
    Hook(
        Target(
            name=f"{_CLASS}.__init__",
            expect="a829d8b37a0bf70b",
            why="the state is sized by the model and the pools, which exist here and not before",
            drop_when="SGLang calls back when a model runner's pools are ready",
        ),
        How.AFTER,
        _after_init,
        Proof.START,
    ),
    Hook(
        Target(
            name=f"{_CLASS}.get_indexer_metadata",
            expect="93468102300be06a",
            why="the one place where eager and captured indexers obtain their page table",
            drop_when=_CALLBACK,
        ),
        How.AFTER,
        _after_metadata,
        Proof.DECODE,
    ),
)

# bodies that are not patched, but without which the compact page table would be wrong
RELIED_ON = (
    Target(
        name="sglang.srt.layers.attention.dsa.dsa_indexer_metadata:DSAIndexerMetadata",
        expect="23a889cff00468f7",
        why="its subclass here adds fields and wraps topk_transform",
        drop_when="the metadata has a score callback",
    ),
    Target(
        name="sglang.srt.layers.attention.dsa.dsa_indexer:Indexer._get_topk_paged",
        expect="a6e92a40ad86506e",
        why="takes table, lengths and schedule from the metadata and hands it the logits",
        drop_when=_CALLBACK,
    ),
    Target(
        name="sglang.srt.layers.attention.dsa.dsa_topk_backend:DSATopKBackend.topk_transform",
        expect="9054745e34f1a3ca",
        why="must choose the paged v2 path for the compact shape",
        drop_when=_CALLBACK,
    ),
    Target(
        name="sglang.srt.layers.attention.dsa.dsa_topk_backend:_topk_transform_v2_paged",
        expect="d8d858bd7816c3e5",
        why="maps columns to slots through the page table it is given",
        drop_when=_CALLBACK,
    ),
    Target(
        name=f"{_CLASS}._build_paged_mqa_schedule_2d_ctx_lens",
        expect="de088abf82f6ddc6",
        why="decides whether a verify step is scored per row or per request",
        drop_when=_CALLBACK,
    ),
    Target(
        name="sglang.srt.layers.attention.dsa_backend:DSAMetadata",
        expect="b2b013bd3493e952",
        why="fields are replaced by name",
        drop_when=_CALLBACK,
    ),
)
