"""DeepSeek-V4's backend: allocate the state, compact the C4 indexer's metadata, see its scores."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target
from sglang_spin.engine.target_model import is_target, layer_ids

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend:DeepseekV4AttnBackend"
_INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
_CALLBACK = "the C4 indexer takes its page table from a registered callback"


def _after_init(_result: None, backend: Any, model_runner: Any, *_args: Any, **_kw: Any) -> None:
    # drafts have no C4 layer; they share rows with the target
    backend.spin_c4 = None
    if not is_target(model_runner):
        return
    from sglang_spin.engine.v4 import RATIO, CompactC4

    runtime = runtimes.current()
    if runtime.state is None:
        allocator = model_runner.token_to_kv_pool_allocator.full_attn_allocator
        runtime.attach(model_runner, allocator, _c4_layers(model_runner.model), ratio=RATIO)
        runtime.c4 = CompactC4(runtime)
    backend.spin_c4 = runtime.c4


def _c4_layers(model: Any) -> list[int]:
    from sglang.srt.layers.attention.dsv4.indexer import C4Indexer

    named = [m for m in model.modules() if type(m).__name__.endswith("Indexer")]
    return layer_ids(named, C4Indexer)


def _around_indexer(original: Any, backend: Any, *args: Any, **kw: Any) -> None:
    c4, batch = getattr(backend, "spin_c4", None), kw["forward_batch"]
    if c4 is None or not batch.forward_mode.is_decode():
        original(backend, *args, **kw)
        return
    layer = kw["c4_indexer"].layer_id
    c4.score(lambda: original(backend, *args, **kw), backend, layer, batch.req_pool_indices)


def _around_topk(original: Any, scores: Any, *args: Any, **kw: Any) -> None:
    c4 = runtimes.current().c4
    if c4 is not None:
        c4.observe(scores)
    original(scores, *args, **kw)


HOOKS = (
    Hook(
        Target(
            name=f"{_BACKEND}.__init__",
            expect="5a37845302b4055e",
            why="the state is sized by the model and the pools, which exist here and not before",
            drop_when="SGLang calls back when a model runner's pools are ready",
        ),
        How.AFTER,
        _after_init,
        Proof.START,
    ),
    Hook(
        Target(
            name=f"{_INDEXER}:C4IndexerBackendMixin.forward_c4_indexer",
            expect="20c5e1747033845a",
            why="scores and selects from one metadata object, which is exchanged around the call",
            drop_when=_CALLBACK,
        ),
        How.AROUND,
        _around_indexer,
        Proof.DECODE,
    ),
    Hook(
        Target(
            name="sglang.kernels.ops.attention.dsv4.topk:topk_transform_paged_v2",
            expect="ee7305152f0aeb52",
            why="the one place outside of the indexer's body where its scores pass by",
            drop_when="the C4 indexer has a score callback",
        ),
        How.AROUND,
        _around_topk,
        Proof.DECODE,
    ),
)

# bodies that are not patched, but without which the compact page table would be wrong
RELIED_ON = (
    Target(
        name="sglang.srt.layers.attention.dsv4.metadata:PagedIndexerMetadata",
        expect="1deee9d6d5377090",
        why="rebuilt with other lengths; makes schedule and top-k plan when it is built",
        drop_when=_CALLBACK,
    ),
    Target(
        name=f"{_BACKEND}.init_forward_metadata_indexer",
        expect="f2c9bea9c6b643ce",
        why="says what table and lengths of the indexer are: full pages, tokens // 4",
        drop_when=_CALLBACK,
    ),
    Target(
        name=f"{_INDEXER}:C4Indexer.forward",
        expect="9b308ff1947c654f",
        why="calls the indexer with its arguments by name",
        drop_when=_CALLBACK,
    ),
)
