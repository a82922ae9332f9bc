"""Server options under which SPIN would be wrong or inactive, refused before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_spin.config import from_env


@dataclass(frozen=True, slots=True)
class Refusal:
    """An option SPIN does not serve under. refused: whether the resolved options have it."""

    option: str
    refused: Callable[[Any], bool]
    why: str


_PAGE_TOKENS = {"dsa": 64, "dsv4": 256}  # of a page, by attention backend

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "an --attention-backend other than dsa or dsv4",
        lambda o: o.attention_backend not in _PAGE_TOKENS,
        "only the indexers of DeepSeek-V3.2, GLM-5 (dsa) and DeepSeek-V4 (dsv4) are hooked",
    ),
    Refusal(
        "--page-size other than 64 (dsa) or 256 (dsv4)",
        lambda o: o.page_size != _PAGE_TOKENS[o.attention_backend],
        "a block is one index-K page of 64 entries; pooled indexers (KPool) use larger pages",
    ),
    Refusal(
        "--dsv4-attn-backend other than flashmla",
        lambda o: o.attention_backend == "dsv4" and o.dsv4_attn_backend != "flashmla",
        "TRT-LLM and MegaAttention are not tested with a pruned indexer",
    ),
    Refusal(
        "--enable-return-indexer-topk with dsv4",
        lambda o: o.attention_backend == "dsv4" and o.enable_return_indexer_topk,
        "it would return columns of the compact table as if they were positions",
    ),
    Refusal(
        "--speculative-algorithm",
        lambda o: o.speculative_algorithm is not None,
        "verify rows are not folded by acceptance yet",
    ),
    Refusal(
        "--spin-scorer fused with --speculative-algorithm",
        lambda o: _fused() and o.speculative_algorithm is not None,
        "the scorer observes plain decode rows, and verify rows are observed per draft position",
    ),
    Refusal(
        "--spin-scorer fused with an --attention-backend other than dsa",
        lambda o: _fused() and o.attention_backend != "dsa",
        "the other indexers do not ask for a scorer in a place that can be hooked",
    ),
    Refusal(
        "--spin-scorer fused with --dsa-paged-mqa-logits-backend",
        lambda o: _fused() and o.dsa_paged_mqa_logits_backend not in ("auto", "deepgemm"),
        "it takes the place of the DeepGEMM scorer",
    ),
    Refusal(
        "--dsa-topk-backend other than sgl-kernel",
        lambda o: o.dsa_topk_backend not in (None, "sgl-kernel"),
        "other top-k kernels do not map columns through the compact page table",
    ),
    Refusal(
        "SGLANG_OPT_USE_TOPK_V2=0",
        lambda _: _off("SGLANG_OPT_USE_TOPK_V2"),
        "the older top-k does not map columns through the compact page table",
    ),
    Refusal(
        "SGLANG_DSA_FUSE_TOPK=0",
        lambda _: _off("SGLANG_DSA_FUSE_TOPK"),
        "unfused top-k returns compact columns as if they were positions",
    ),
    Refusal(
        "--enable-hisparse",
        lambda o: o.enable_hisparse,
        "it takes logical positions from the top-k, which a compact table does not give",
    ),
    Refusal(
        "--enable-two-batch-overlap",
        lambda o: o.enable_two_batch_overlap,
        "each half batch has an attention backend of its own, without SPIN's state",
    ),
    Refusal(
        "--enable-mixed-chunk",
        lambda o: o.enable_mixed_chunk,
        "decode rows inside a prefill batch would be scored in full, silently",
    ),
    Refusal(
        "--enable-unified-memory",
        lambda o: o.enable_unified_memory,
        "it moves pages, and the prior is kept by page number",
    ),
    Refusal(
        "--enable-kv-cache-sharding",
        lambda o: o.enable_kv_cache_sharding,
        "page ids are then local to a shard",
    ),
    Refusal(
        "--dcp-size above 1",
        lambda o: (o.dcp_size or 1) > 1,
        "page ids are then local to a rank",
    ),
    Refusal(
        "--pp-size above 1",
        lambda o: (o.pp_size or 1) > 1,
        "a stage without an indexer layer has no step to hook",
    ),
    Refusal(
        "--enable-dp-attention",
        lambda o: o.enable_dp_attention,
        "idle ranks are not proven yet",
    ),
    Refusal(
        "--disaggregation-mode",
        lambda o: o.disaggregation_mode not in (None, "null"),
        "rows and pages arrive by another path",
    ),
    Refusal(
        "--enable-pdmux",
        lambda o: o.enable_pdmux,
        "prefill and decode then run on two streams, and events are drained on one",
    ),
    Refusal(
        "--use-ray",
        lambda o: o.use_ray,
        "Ray's scheduler actors do not load plugins, so the server would run without SPIN",
    ),
    Refusal(
        "this device",
        lambda o: o.device not in ("cuda", "cpu") or _unsupported_gpu(),
        "only NVIDIA GPUs of compute capability 9.x and 10.x, and the CPU engine, are supported",
    ),
)


def first_refusal(options: Any) -> str | None:
    """The first reason not to start with these resolved options, or None."""
    for refusal in REFUSALS:
        if refusal.refused(options):
            return f"{refusal.option} is not supported: {refusal.why}; or start with --no-spin"
    return None


def _fused() -> bool:
    return from_env().scorer == "fused"


def _off(variable: str) -> bool:
    return os.environ.get(variable, "1").lower() in ("0", "false", "no", "off")


def _unsupported_gpu() -> bool:
    import torch

    if not torch.cuda.is_available():
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability()[0] not in (9, 10)
