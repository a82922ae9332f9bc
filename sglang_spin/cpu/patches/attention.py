"""Sparse attention over the latent cache, and writing that cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_BACKEND = "sglang.srt.layers.attention.dsa_backend:DeepseekSparseAttnBackend"
_DROP = "SGLang's DSA backend has a CPU implementation"

TARGETS: tuple[Target, ...] = (
    Target(
        f"{_BACKEND}.__init__",
        "a829d8b37a0bf70b",
        "asks torch.cuda for the compute capability",
        _DROP,
    ),
    Target(
        f"{_BACKEND}.init_forward_metadata",
        "1f7443ca4ce63432",
        "builds the scorer's schedule if is_cuda()",
        _DROP,
    ),
    Target(
        f"{_BACKEND}._forward_flashmla_sparse",
        "5e64ad29b34a1c7b",
        "prefill attention, a CUDA wheel",
        _DROP,
    ),
    Target(
        f"{_BACKEND}._forward_fa3",
        "40ad88dba9b99cfb",
        "decode attention; calls flash_attn_with_kvcache",
        _DROP,
    ),
    Target(
        f"{_BACKEND}.get_cuda_graph_seq_len_fill_value",
        "4b643e4e3eb29249",
        "pads idle attention-DP ranks; on a CPU its twin is asked, which this backend lacks",
        _DROP,
    ),
    Target(
        "sglang.srt.mem_cache.memory_pool:MLATokenToKVPool._scatter_mla_rows",
        "ac22113024a3a468",
        "runs a Triton kernel",
        _DROP,
    ),
)


def install() -> None:
    """Replace both attention kernels and the cache write."""
    import sglang.srt.layers.attention.dsa_backend as module
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    # the CUDA flow builds the context lengths and the schedule once per step; so do we
    module.is_cuda = lambda: True
    module.flash_attn_with_kvcache = _decode
    backend = module.DeepseekSparseAttnBackend
    backend._forward_flashmla_sparse = _prefill
    backend.get_cpu_graph_seq_len_fill_value = backend.get_cuda_graph_seq_len_fill_value
    MLATokenToKVPool._scatter_mla_rows = _write


def _decode(
    *,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qv: Tensor,
    page_table: Tensor,
    cache_seqlens: Tensor,
    softmax_scale: float,
    softcap: float,
    **_cuda_only: Any,
) -> Tensor:
    """FA3 in the form the DSA backend calls it: pages of one token, one query per row."""
    from sglang_spin.cpu.kernels.sparse_mla import sparse_mla

    if softcap:
        raise NotImplementedError("the CPU attention has no logit soft cap")
    latent, rope = v_cache.flatten(0, 2), k_cache.flatten(0, 2)
    return sparse_mla(qv, q, latent, rope, page_table, cache_seqlens, softmax_scale)


def _prefill(
    _backend: Any,
    q_all: Tensor,
    kv_cache: Tensor,
    v_head_dim: int,
    page_table_1: Tensor,
    sm_scale: float,
    topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
) -> Tensor:
    from sglang_spin.cpu.kernels.sparse_mla import sparse_mla

    if attn_sink is not None:
        raise NotImplementedError("the CPU attention has no sinks")
    cache = kv_cache.flatten(0, 1)
    counts = topk_length
    if counts is None or counts.shape[0] != q_all.shape[0]:
        counts = page_table_1.new_full((q_all.shape[0],), page_table_1.shape[1])
    return sparse_mla(
        q_all[..., :v_head_dim],
        q_all[..., v_head_dim:],
        cache[:, :v_head_dim],
        cache[:, v_head_dim:],
        page_table_1,
        counts,
        sm_scale,
    )


def _write(
    _pool: Any, dst_buffer: Tensor, loc: Tensor, cache_k_nope: Tensor, cache_k_rope: Tensor
) -> None:
    rows = dst_buffer.view(dst_buffer.shape[0], -1)
    tokens = loc.shape[0]
    split = cache_k_nope.numel() // tokens if tokens else 0
    rows[loc.long(), :split] = cache_k_nope.reshape(tokens, -1)
    rows[loc.long(), split:] = cache_k_rope.reshape(tokens, -1)
