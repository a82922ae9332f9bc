"""The index key cache: quantised keys in and out of their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_CACHE = "sglang.kernels.ops.kvcache.dsa_index_k_cache"
_DROP = "SGLang offers a torch fallback for the index key cache"

TARGETS: tuple[Target, ...] = (
    Target(f"{_CACHE}:SetKAndS.execute", "5cb72d18f31af48c", "runs a Triton kernel", _DROP),
    Target(f"{_CACHE}:GetKAndS.execute", "ef96d6a6f6976273", "runs a Triton kernel", _DROP),
)


def install() -> None:
    """Replace both entry points."""
    from sglang.kernels.ops.kvcache import dsa_index_k_cache as module

    module.SetKAndS.execute = staticmethod(_set)
    module.GetKAndS.execute = staticmethod(_get)


def _set(pool: Any, buf: Tensor, loc: Tensor, index_k: Tensor, index_k_scale: Tensor) -> None:
    from sglang_spin.cpu.kernels.index_keys import write_index_keys

    write_index_keys(buf, loc, index_k, index_k_scale, pool.index_page_size)


def _get(
    pool: Any,
    buf: Tensor,
    page_indices: Tensor,
    seq_len_tensor: Tensor,
    seq_len_sum: int,  # noqa: ARG001  upstream's signature
    max_seq_len: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    from sglang_spin.cpu.kernels.index_keys import read_index_keys

    return read_index_keys(
        buf, page_indices, seq_len_tensor, pool.index_page_size, pool.index_head_dim
    )
