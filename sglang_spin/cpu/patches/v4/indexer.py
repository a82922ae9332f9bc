"""The C4 indexer: queries, scores and top-k. Compression of its keys is the compressor's."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
_NORM_ROPE = "sglang.kernels.ops.attention.dsv4.norm_rope"
_DROP = "SGLang runs the C4 indexer on CPUs itself"

TARGETS: tuple[Target, ...] = (
    Target(
        f"{_INDEXER}:fp8_paged_mqa_logits_torch",
        "3b667e81ed4e2ef9",
        "rounds products to bf16",
        _DROP,
    ),
    Target(
        f"{_INDEXER}:C4IndexerBackendMixin.forward_c4_indexer",
        "20c5e1747033845a",
        "the path we run",
        _DROP,
    ),
    Target(
        f"{_NORM_ROPE}:fused_q_indexer_rope_hadamard_quant",
        "0a9b221b1500100d",
        "a CUDA kernel",
        _DROP,
    ),
)


def install() -> None:
    """Replace the scorer and the query operator; topk.py has the top-k."""
    import sglang.kernels.ops.attention.dsv4 as package
    import sglang.kernels.ops.attention.dsv4.norm_rope as norm_rope
    import sglang.kernels.ops.attention.dsv4.topk as topk
    import sglang.srt.layers.attention.dsv4.indexer as module

    for holder in (package, norm_rope, module):
        holder.fused_q_indexer_rope_hadamard_quant = _query
    module.fp8_paged_mqa_logits_torch = _score
    for holder in (package, module):
        holder.plan_topk_v2 = topk.plan_topk_v2
        holder.topk_transform_paged_v2 = topk.topk_transform_paged_v2


def _query(
    q_input: Tensor, weight: Tensor, weight_scale: float, freqs_cis: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """fp8 queries and gates [tokens, heads, 1], which take over the queries' scales."""
    from sglang_spin.cpu.kernels.hadamard import hadamard
    from sglang_spin.cpu.kernels.quantization import quantize_blocks
    from sglang_spin.cpu.kernels.v4.norm_rope import rotate_tail_

    rows = rotate_tail_(q_input.float().clone(), freqs_cis, positions)
    dim = rows.shape[-1]
    values, scales = quantize_blocks(hadamard(rows, dim**-0.5), dim, power_of_two=False)
    return values, weight.float().unsqueeze(-1) * weight_scale * scales


def _score(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    lengths: Tensor,
    table: Tensor,
    _schedule_metadata: None,
    max_len: int,
    clean_logits: bool = True,
) -> Tensor:
    """DeepGEMM's fp8_paged_mqa_logits: q [rows, 1, heads, 128], lengths [rows].

    The rows of a prefill chunk share their pages, so its keys are decoded once for all of them.
    """
    import torch

    from sglang_spin.cpu.kernels.index_keys import read_index_keys
    from sglang_spin.cpu.kernels.index_scores import (
        PAGE,
        paged_index_scores,
        ragged_index_scores,
    )
    from sglang_spin.cpu.kernels.vector_scores import DIM

    if clean_logits:
        raise NotImplementedError("the CPU scorer leaves columns out of range uninitialised")
    queries, pages = q.squeeze(1), kv_cache.view(kv_cache.shape[0], -1)
    if q.shape[0] < SHARED_ROWS:
        return paged_index_scores(queries, pages, weights, lengths, table, max_len)
    logits = torch.empty((q.shape[0], max_len), dtype=torch.float32)
    for rows in _same_table(table):
        longest = lengths[rows].max().reshape(1)
        keys, scales = read_index_keys(pages, table[rows][:1], longest, PAGE, DIM)
        if keys.shape[0]:
            logits[rows, : keys.shape[0]] = ragged_index_scores(
                queries[rows],
                keys.view(torch.float8_e4m3fn),
                scales.view(torch.float32).squeeze(-1),
                weights[rows],
                torch.zeros_like(lengths[rows]),
                lengths[rows],
            )
    return logits


SHARED_ROWS = 32  # fewer rows are scored one by one: a decode batch


def _same_table(table: Tensor) -> list[slice]:
    """Runs of rows with equal page tables, as slices."""
    changed = (table[1:] != table[:-1]).any(-1).nonzero().flatten() + 1
    edges = [0, *changed.tolist(), table.shape[0]]
    return [slice(a, b) for a, b in pairwise(edges)]
