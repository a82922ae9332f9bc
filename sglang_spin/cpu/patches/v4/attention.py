"""Attention over both caches, and what is applied to queries and keys before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_NORM_ROPE = "sglang.kernels.ops.attention.dsv4.norm_rope"
_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
_DROP = "SGLang's V4 backend has a CPU implementation"

TARGETS: tuple[Target, ...] = (
    Target(f"{_NORM_ROPE}:fused_q_norm_rope", "74469f7e5e4e244e", "a CUDA kernel", _DROP),
    Target(f"{_NORM_ROPE}:fused_rope_inplace", "a029c04f2c84dc6a", "a CUDA kernel", _DROP),
    Target(f"{_NORM_ROPE}:fused_k_norm_rope_flashmla", "45e4c5bdb402bb7d", "a CUDA kernel", _DROP),
    Target(
        f"{_BACKEND}:DeepseekV4AttnBackend._forward_attention",
        "4bd5d177e312a993",
        "calls FlashMLA",
        _DROP,
    ),
    Target(f"{_BACKEND}:_create_flashmla_metadata", "32f66eccb12f3ad0", "imports FlashMLA", _DROP),
)


def install() -> None:
    """Replace FlashMLA and the fused operators, under every name their users hold."""
    import sglang.kernels.ops.attention.dsv4 as package
    import sglang.kernels.ops.attention.dsv4.norm_rope as norm_rope
    import sglang.srt.layers.attention.deepseek_v4_backend as backend
    import sglang.srt.mem_cache.deepseek_v4_memory_pool as pool
    import sglang.srt.models.deepseek_v4 as model

    for holder in (package, norm_rope, pool, model):
        for name, kernel in (
            ("fused_q_norm_rope", _query),
            ("fused_rope_inplace", _rotate),
            ("fused_k_norm_rope_flashmla", _key),
        ):
            if hasattr(holder, name):
                setattr(holder, name, kernel)
    backend._create_flashmla_metadata = lambda: None
    backend.DeepseekV4AttnBackend._flash_mla_with_kvcache = staticmethod(_attend)


def _query(
    q_input: Tensor, q_output: Tensor, eps: float | None, freqs_cis: Tensor, positions: Tensor
) -> None:
    from sglang_spin.cpu.kernels.v4.norm_rope import normed, rotate_tail_

    rows = q_input.float().clone() if eps is None else normed(q_input, None, eps)
    q_output.copy_(rotate_tail_(rows, freqs_cis, positions))


def _rotate(
    q: Tensor, k: Tensor | None, freqs_cis: Tensor, positions: Tensor, inverse: bool = False
) -> None:
    from sglang_spin.cpu.kernels.v4.norm_rope import rotate_tail_

    for x in (q, k):
        if x is not None:
            rotate_tail_(x, freqs_cis, positions, inverse)


def _key(
    kv: Tensor,
    kv_weight: Tensor,
    eps: float,
    freqs_cis: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    kvcache: Tensor,
    page_size: int,
    **_gpu_only: Any,
) -> None:
    import torch

    from sglang_spin.cpu.kernels.v4.latent_rows import write_rows
    from sglang_spin.cpu.kernels.v4.norm_rope import normed_rotated

    rows = normed_rotated(kv, kv_weight, eps, freqs_cis, positions)
    pages = kvcache.view(torch.uint8).view(kvcache.shape[0], -1)
    write_rows(pages, out_loc, rows, page_size)


def _attend(
    *,
    q: Tensor,
    k_cache: Tensor,
    head_dim_v: int,
    softmax_scale: float,
    indices: Tensor,
    topk_length: Tensor,
    attn_sink: Tensor,
    extra_k_cache: Tensor | None,
    extra_indices_in_kvcache: Tensor | None,
    extra_topk_length: Tensor | None,
    **_gpu_only: Any,
) -> tuple[Tensor]:
    """FlashMLA over V4's caches: q [tokens, 1, heads, 512], indices [tokens, 1, n]."""
    from sglang_spin.cpu.kernels.v4.sparse_mqa import sparse_mqa

    if head_dim_v != q.shape[-1]:
        raise NotImplementedError("the CPU attention has values as wide as the keys")
    caches = [_selected(k_cache, indices, topk_length)]
    if extra_k_cache is not None:
        assert extra_indices_in_kvcache is not None
        assert extra_topk_length is not None
        caches.append(_selected(extra_k_cache, extra_indices_in_kvcache, extra_topk_length))
    out = sparse_mqa(q.squeeze(1), caches, softmax_scale, attn_sink.float())
    return (out.to(q.dtype).unsqueeze(1),)


def _selected(cache: Tensor, slots: Tensor, counts: Tensor) -> Any:
    """cache [pages, page size, 1, 584], a view into pages that may be padded."""
    import torch

    from sglang_spin.cpu.kernels.v4.latent_rows import ROW_BYTES
    from sglang_spin.cpu.kernels.v4.sparse_mqa import Selected

    raw = cache.view(torch.uint8)
    if raw.shape[-1] != ROW_BYTES:
        raise NotImplementedError(f"the CPU attention reads rows of {ROW_BYTES} bytes")
    shape, stride = (raw.shape[0], raw.shape[1] * ROW_BYTES), (raw.stride(0), 1)
    pages = torch.as_strided(raw, shape, stride, raw.storage_offset())
    return Selected(pages, raw.shape[1], slots.squeeze(1).int(), counts.int())
