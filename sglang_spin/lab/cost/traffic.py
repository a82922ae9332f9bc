"""Bytes and FLOPs of the parts of one decode step, on one rank. Pure functions, no times."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sglang_spin.core.block import BLOCK
from sglang_spin.lab.cost.gpus import Precision
from sglang_spin.lab.cost.models import ModelShape

IndexFormat = Literal["fp8", "fp4"]

INDEX_SCALE = 4  # bytes of scales beside each index key, in both formats
LOGIT = 4  # bytes, fp32
ID = 4  # bytes of a page or block id, int32


@dataclass(frozen=True)
class Load:
    """context: tokens of every request; batch: requests in decode, one query row each;
    tp: ranks, over which weights are split while index and KV cache are replicated."""

    context: int
    batch: int
    tp: int
    index_format: IndexFormat


@dataclass(frozen=True)
class Work:
    """read, written: HBM bytes; flops: on tensor cores in `precision`; launches: kernels."""

    read: float
    written: float = 0.0
    flops: float = 0.0
    precision: Precision = "fp8"
    launches: int = 0

    @property
    def moved(self) -> float:
        """Bytes read and written."""
        return self.read + self.written


def entry_bytes(model: ModelShape, index_format: IndexFormat) -> int:
    """Bytes of one entry of the index-K cache: 132 in fp8, 68 in fp4 at dimension 128."""
    values = model.index_dim if index_format == "fp8" else model.index_dim // 2
    return values + INDEX_SCALE


def entries(model: ModelShape, context: int) -> int:
    """Index entries of one request in one layer; only whole groups of tokens have one."""
    return context // model.compress_ratio


def blocks(model: ModelShape, context: int) -> int:
    """Blocks that hold those entries, the newest possibly partial."""
    return -(-entries(model, context) // BLOCK)


def kept_blocks(model: ModelShape, context: int, sparsity: float) -> int:
    """Blocks scored at a sparsity: the rule of `core.budget`, which needs torch, in integers."""
    count = blocks(model, context)
    floor = -(-model.index_topk // BLOCK) + 1
    return min(count, max(floor, count - int(Fraction(str(sparsity)) * count)))


def kept_entries(model: ModelShape, context: int, kept: int) -> int:
    """Entries in `kept` blocks, the newest, partial one among them."""
    return entries(model, context) - BLOCK * (blocks(model, context) - kept)


def _scored(model: ModelShape, load: Load, kept: int) -> int:
    """Entries scored in a step, over all requests and layers."""
    return kept_entries(model, load.context, kept) * load.batch * model.indexer_layers


def scoring(model: ModelShape, load: Load, kept: int) -> Work:
    """Indexer: each kept entry is read once, multiplied with all heads, gives one fp32 logit."""
    scored = _scored(model, load, kept)
    return Work(
        read=scored * entry_bytes(model, load.index_format),
        written=scored * LOGIT,
        flops=scored * 2 * model.index_heads * model.index_dim,
        precision=load.index_format,
    )


def topk(model: ModelShape, load: Load, kept: int) -> Work:
    """Top-k: one pass over the logits of the kept entries; writes index_topk ids a row."""
    rows = load.batch * model.indexer_layers
    chosen = min(model.index_topk, entries(model, load.context))
    return Work(read=_scored(model, load, kept) * LOGIT, written=rows * chosen * ID)


def attended(model: ModelShape, context: int) -> int:
    """KV entries that one request's query reads, over all layers."""
    chosen = min(model.index_topk, entries(model, context)) * model.indexer_layers
    pooled = context // model.pooled_ratio * model.pooled_layers
    return chosen + pooled + min(model.window, context) * model.layers


def core_attention(model: ModelShape, load: Load) -> Work:
    """Core attention: KV entries are read by every rank, heads are split over the ranks."""
    seen = attended(model, load.context) * load.batch
    heads = model.attention_heads / load.tp
    return Work(
        read=seen * model.kv_bytes,
        flops=seen * heads * 2 * (model.latent_dim + model.value_dim),
        precision="bf16",
    )


def experts_touched(model: ModelShape, batch: int) -> float:
    """Expected share of routed experts that a batch uses, under uniform independent routing."""
    return 1.0 - (1.0 - model.experts_per_token / model.experts) ** batch


def weights(model: ModelShape, load: Load) -> Work:
    """Weights: experts the batch touches and all the rest once, split evenly over the ranks."""
    experts = model.expert_parameters * model.expert_bytes * experts_touched(model, load.batch)
    other = (model.parameters - model.expert_parameters) * model.other_bytes
    flops = 2.0 * model.active * load.batch
    return Work(read=(experts + other) / load.tp, flops=flops / load.tp, precision="fp8")


def memory(model: ModelShape, load: Load) -> float:
    """HBM bytes one rank needs for its weights and for the caches of the batch, without SPIN."""
    experts = model.expert_parameters * model.expert_bytes
    other = (model.parameters - model.expert_parameters) * model.other_bytes
    count = entries(model, load.context)
    index = count * model.indexer_layers * entry_bytes(model, load.index_format)
    held = count * model.indexer_layers + load.context // model.pooled_ratio * model.pooled_layers
    cache = index + (held + model.window * model.layers) * model.kv_bytes
    return (experts + other) / load.tp + cache * load.batch
