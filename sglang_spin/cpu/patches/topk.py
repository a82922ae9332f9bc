"""Top-k with the page-table transform, for decode (v2 kernel) and prefill (legacy kernel)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_V2 = "sglang.kernels.ops.attention.dsv4.topk"
_DROP = "SGLang's top-k has a CPU path"

TARGETS: tuple[Target, ...] = (
    Target(f"{_V2}:plan_topk_v2", "952fef16218c9b60", "compiles CUDA code", _DROP),
    Target(f"{_V2}:topk_transform_paged_v2", "ee7305152f0aeb52", "compiles CUDA code", _DROP),
    Target(
        "sglang.srt.layers.attention.dsa.dsa_topk_backend:DSATopKBackend.topk_transform",
        "9054745e34f1a3ca",
        "imports fast_topk_transform_fused from sgl_kernel, which we add to the stand-in",
        _DROP,
    ),
)


def install() -> None:
    """Replace the v2 functions and give the sgl_kernel stand-in the top-k that prefill calls."""
    from sglang.kernels.ops.attention.dsv4 import topk as module

    module.plan_topk_v2 = _plan
    module.topk_transform_paged_v2 = _paged
    stand_in = import_module("sgl_kernel")
    stand_in.fast_topk_transform_fused = _by_token_table  # type: ignore[attr-defined]


def _plan(seq_lens: Tensor, static_threshold: int = -1, *, out: Tensor | None = None) -> Tensor:  # noqa: ARG001
    return seq_lens.new_zeros((seq_lens.shape[0] + 1, 2)) if out is None else out.zero_()


def _paged(
    scores: Tensor,
    seq_lens: Tensor,
    page_tables: Tensor | None,
    out_page_indices: Tensor,
    page_size: int,
    metadata: Tensor,  # noqa: ARG001  upstream's signature
    out_raw_indices: Tensor | None = None,
) -> None:
    from sglang_spin.cpu.kernels.topk import topk_slots

    if page_tables is None:
        raise NotImplementedError("the CPU top-k needs a page table")
    columns = topk_slots(scores, seq_lens, page_tables, page_size, out_page_indices)
    if out_raw_indices is not None:
        out_raw_indices.copy_(columns)


def _by_token_table(
    score: Tensor,
    lengths: Tensor,
    page_table_size_1: Tensor,
    cu_seqlens_q: Tensor,
    topk: int,
    row_starts: Tensor | None = None,
) -> Tensor:
    """sgl_kernel.fast_topk_transform_fused: all rows of request b map through table row b."""
    import torch

    from sglang_spin.cpu.kernels.topk import topk_slots_of_tokens

    requests = torch.arange(cu_seqlens_q.shape[0] - 1, dtype=torch.int32)
    row_of = requests.repeat_interleave(cu_seqlens_q[1:] - cu_seqlens_q[:-1])
    return topk_slots_of_tokens(score, lengths, page_table_size_1, row_of, topk, row_starts)
