"""Server options under which SPIN would be wrong or inactive, refused before anything starts.

docs/support.md repeats the table; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang_spin.config import from_env


@dataclass(frozen=True, slots=True)
class Refusal:
    """What SPIN does not serve under, and why.

    refused: whether the resolved server options have it, or the model's Hugging Face config
    (model_refusals.py).
    """

    option: str
    refused: Callable[[Any], bool]
    why: str


_PAGE_TOKENS = {"dsa": 64, "dsv4": 256}  # of a page, by attention backend
_OUTSIDE = "pages filled from outside are not tested with SPIN"
_NO_DECODE = "such a server has no decode steps"
_FUSED = "its decode steps do not call the hooked indexer"
_NO_V2 = "the older top-k does not map columns through the compact page table"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "an --attention-backend other than dsa or dsv4",
        lambda o: o.attention_backend not in _PAGE_TOKENS,
        "only the indexers of DeepSeek-V3.2, GLM-5 (dsa) and DeepSeek-V4 (dsv4) are hooked",
    ),
    Refusal(
        "a --decode-attention-backend of another kind than --attention-backend",
        lambda o: o.decode_attention_backend not in (None, o.attention_backend),
        "decode would not go through the hooked indexer",
    ),
    Refusal(
        "a --prefill-attention-backend of another kind than --attention-backend",
        lambda o: o.prefill_attention_backend not in (None, o.attention_backend),
        "two backends in one server are not tested; the state belongs to one",
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
        "--speculative-algorithm other than EAGLE, NEXTN or NGRAM",
        lambda o: o.speculative_algorithm not in (None, "EAGLE", "NEXTN", "NGRAM"),
        "only verify steps of these have been run",
    ),
    Refusal(
        "--speculative-algorithm with dsv4",
        lambda o: o.speculative_algorithm is not None and o.attention_backend == "dsv4",
        "verify steps of its indexer are not hooked",
    ),
    Refusal(
        "a --speculative-eagle-topk or --speculative-ngram-max-bfs-breadth above 1",
        lambda o: o.speculative_algorithm is not None and (o.speculative_eagle_topk or 1) > 1,
        "the rows of a draft tree are not a sequence, of which a prefix is accepted",
    ),
    Refusal(
        "--speculative-adaptive or --enable-multi-layer-eagle",
        lambda o: bool(o.speculative_adaptive or o.enable_multi_layer_eagle),
        "neither has been run",
    ),
    Refusal(
        "--spin-scorer fused or --spin-policy spin-paper with --speculative-algorithm",
        lambda o: bool(o.speculative_algorithm) and (_fused() or from_env().policy == "spin-paper"),
        "neither observes a request's rows one by one",
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
        "--decoupled-spec-role",
        lambda o: o.decoupled_spec_role != "null",
        "draft and target are then different servers, and neither reports acceptance to the other",
    ),
    Refusal(
        "--dsa-topk-backend other than sgl-kernel",
        lambda o: o.dsa_topk_backend not in (None, "sgl-kernel"),
        "other top-k kernels do not map columns through the compact page table",
    ),
    Refusal("SGLANG_OPT_USE_TOPK_V2=0", lambda _: _off("SGLANG_OPT_USE_TOPK_V2"), _NO_V2),
    Refusal(
        "SGLANG_DSA_FUSE_TOPK=0",
        lambda _: _off("SGLANG_DSA_FUSE_TOPK"),
        "unfused top-k returns compact columns as if they were positions",
    ),
    Refusal(
        "--dsa-paged-mqa-logits-backend aiter",
        lambda o: o.dsa_paged_mqa_logits_backend == "aiter",
        "it is ROCm's scorer, and SPIN runs on NVIDIA GPUs",
    ),
    Refusal(
        "--enable-dsa-fused-indexer",
        lambda o: bool(o.enable_dsa_fused_indexer),
        "it scores and selects in one kernel, past the metadata that SPIN makes compact",
    ),
    Refusal("--enable-nvidia-megakernel", lambda o: o.enable_nvidia_megakernel, _FUSED),
    Refusal("--enable-amd-monokernel", lambda o: o.enable_amd_monokernel, _FUSED),
    Refusal(
        "--enable-torch-compile",
        lambda o: o.enable_torch_compile,
        "the hook would be traced as a part of the model",
    ),
    Refusal(
        "--cuda-graph-backend-decode breakable",
        lambda o: (
            getattr(getattr(o.cuda_graph_config, "decode", None), "backend", "") == "breakable"
        ),
        "a step recorded in pieces is not tested; the state must change in one recording",
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
    Refusal("--dllm-algorithm", lambda o: o.dllm_algorithm is not None, _NO_DECODE),
    Refusal("--is-embedding", lambda o: o.is_embedding, _NO_DECODE),
    Refusal("--encoder-only", lambda o: o.encoder_only, _NO_DECODE),
    Refusal(
        "--enable-unified-memory",
        lambda o: o.enable_unified_memory,
        "it moves pages, and the prior is kept by page number",
    ),
    Refusal(
        "--radix-cache-backend",
        lambda o: o.radix_cache_backend is not None,
        "a prefix cache that is not the engine's own may hand pages on unseen",
    ),
    Refusal("--enable-lmcache", lambda o: o.enable_lmcache, _OUTSIDE),
    Refusal("--enable-flexkv", lambda o: o.enable_flexkv, _OUTSIDE),
    Refusal(
        "--enable-unified-cache-external-linker",
        lambda o: o.enable_unified_cache_external_linker,
        _OUTSIDE,
    ),
    Refusal(
        "--enable-streaming-session",
        lambda o: o.enable_streaming_session,
        "a session keeps its row between requests and may shorten it; the history would stay",
    ),
    Refusal(
        "--enable-kv-cache-sharding",
        lambda o: o.enable_kv_cache_sharding,
        "page ids are then local to a shard",
    ),
    Refusal(
        "--enable-dsa-cache-layer-split",
        lambda o: o.enable_dsa_cache_layer_split,
        "index keys of a layer are then on one rank only",
    ),
    Refusal(
        "--dcp-size above 1",
        lambda o: (o.dcp_size or 1) > 1,
        "page ids are then local to a rank",
    ),
    Refusal(
        "--attn-cp-size above 1",
        lambda o: (o.attn_cp_size or 1) > 1 or o.enable_prefill_cp,
        "context parallelism is not tested with SPIN",
    ),
    Refusal(
        "--pp-size above 1",
        lambda o: (o.pp_size or 1) > 1,
        "a stage without an indexer layer has no step to hook",
    ),
    Refusal(
        "--elastic-ep-backend",
        lambda o: o.elastic_ep_backend is not None,
        "ranks that leave and join at run time are not tested with SPIN",
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
        "a --device other than cuda or cpu",
        lambda o: o.device not in ("cuda", "cpu"),
        "only NVIDIA GPUs and the CPU engine are supported",
    ),
)


def first_refusal(options: Any, table: tuple[Refusal, ...] = REFUSALS) -> str | None:
    """The first reason in the table not to start with these resolved options, or None."""
    for refusal in table:
        if refusal.refused(options):
            return f"{refusal.option} is not supported: {refusal.why}; or start with --no-spin"
    return None


def _fused() -> bool:
    return from_env().scorer == "fused"


def _off(variable: str) -> bool:
    from sglang.srt.environ import envs

    return not getattr(envs, variable).get()
