"""Fingerprints of the bodies that patches/sglang-0.5.23 changes, as they are afterwards.

Bodies that the patches declare a seam on are attached to there in place of being hooked.
"""

from __future__ import annotations

_DSA = "sglang.srt.layers.attention.dsa"
_BACKEND = "sglang.srt.layers.attention.dsa_backend:DeepseekSparseAttnBackend"
_METADATA = f"{_DSA}.dsa_indexer_metadata:DSAIndexerMetadata"
_ALLOCATOR = "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"
_STATUS = "sglang.srt.managers.scheduler_components.internal_state"
_ROPE = "sglang.srt.layers.rotary_embedding.rope_variant:DeepseekScalingRotaryEmbedding"

PATCHED: dict[str, str] = {
    "sglang.srt.managers.scheduler:Scheduler.__init__": "670f79e183c6dfd4",
    f"{_BACKEND}.__init__": "2e47d3d60820c2c3",
    f"{_BACKEND}.get_indexer_metadata": "93f1856ed8d0c3b8",
    _METADATA: "e666d10763d52456",
    f"{_METADATA}.topk_transform": "6f3cc83edd03657d",
    "sglang.srt.mem_cache.memory_pool:ReqToTokenPool.alloc_rows": "772b21c4f5d56172",
    "sglang.srt.mem_cache.common:release_kv_cache": "7ee2dfd85f26b569",
    f"{_ALLOCATOR}.alloc": "726cde4e76eb32f1",
    f"{_ALLOCATOR}.alloc_extend": "3e1eb388e166ee51",
    f"{_ALLOCATOR}.alloc_decode": "a382aaaf063d277e",
    f"{_ALLOCATOR}.clear": "6e954d9d48149712",
    "sglang.srt.model_executor.model_runner:ModelRunner._forward_raw": "05e06ce393a6463e",
    f"{_STATUS}:SchedulerInternalStateController.get_internal_state": "7b6353410b9ac7d4",
    f"{_ROPE}.forward_native": "718317534ea0670f",
    f"{_DSA}.dsa_indexer:Indexer._get_topk_ragged": "57a0ff09b26aec8c",
}
