"""Weights of `tiny-dsa`, drawn from a seed, but not blindly.

Plain noise gives scores that are alike everywhere, and then no block is worth predicting. Four
properties are put in by construction:

* Tokens form topics (runs of consecutive ids), and all embeddings share one direction. The
  shared direction gives every query a constant part, so successive steps look at the same blocks;
  topics make neighbouring tokens alike, so importance comes in blocks.
* Index keys and attention keys read the same features. What the indexer ranks low, attention would
  have weighted low, as in a trained model; a wrong selection changes the output, a swap at the
  boundary of the top-k hardly does.
* A few stream dimensions carry a code of the token that no layer overwrites, and the expert router
  reads mostly that code. Expert choices then have wide margins and do not flip with rounding.
* Every token favours a few successors and not itself, so greedy decoding wanders and does not
  repeat one token; the last shared expert writes along output rows. Both make logits heavy-tailed:
  the best token stands clear of the second, and rounding rarely changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_spin.cpu.tiny_dsa import CONFIG
from sglang_spin.cpu.tiny_stream import (
    CODE,
    EXPERTS,
    HIDDEN,
    aimed_at,
    embedding,
    gain,
    gated_mlp,
    normal,
    router,
    successors,
    to_stream,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

SEED = 20_1109

VOCAB = int(CONFIG["vocab_size"])
LAYERS, HEADS = int(CONFIG["num_hidden_layers"]), int(CONFIG["num_attention_heads"])
Q_LORA, KV_LORA = int(CONFIG["q_lora_rank"]), int(CONFIG["kv_lora_rank"])
ROPE, NOPE = int(CONFIG["qk_rope_head_dim"]), int(CONFIG["qk_nope_head_dim"])
VALUE: int = CONFIG["v_head_dim"]
INDEX_HEADS, INDEX_DIM = int(CONFIG["index_n_heads"]), int(CONFIG["index_head_dim"])
# the stream widens from layer to layer while its shared dimension stays: readers make up for it
STREAM_GROWTH = (1.0, 1.4, 1.7, 2.0)
FEATURES = 64  # content features that index keys and attention keys share
CONTENT = 0.7  # strength of content matching in a score
BANDS = (5.0, 14.0, 17.0, 20.0)  # centre of each head's band of rotary pairs
WAVE = 0.4  # strength of distance matching
SOFTNESS = 0.7  # of attention against the indexer: no single selected token decides the output
BLUR = 0.3  # relative noise between an attention head and its copies among the index heads


def weights(seed: int = SEED) -> dict[str, Tensor]:
    """All parameters by Hugging Face name: bf16, the routing bias fp32. Same seed, same bits."""
    import torch

    gen = torch.Generator().manual_seed(seed)
    base = normal(gen, VOCAB, HIDDEN, scale=3 / math.sqrt(HIDDEN))
    table = embedding(gen)
    tensors = {
        "model.embed_tokens.weight": table,
        "model.norm.weight": gain(gen, HIDDEN),
        "lm_head.weight": base + successors(gen, table),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        last = layer == LAYERS - 1
        block = _attention(gen, STREAM_GROWTH[layer]) | _feed_forward(
            gen, layer, base if last else None
        )
        for name, tensor in block.items():
            tensors[prefix + name] = tensor
    return {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.bfloat16()
        for name, tensor in tensors.items()
    }


@dataclass(frozen=True)
class _Matching:
    """What decides the scores of one layer; its attention heads and its indexer both read it.

    A query is matched on content (features of the stream, one sign per feature and head) and on
    distance (a constant vector that the rotary embedding turns into waves).
    """

    growth: float
    features: Tensor  # [FEATURES, HIDDEN] stream -> content features
    signs: Tensor  # [HEADS, FEATURES]
    query_wave: Tensor  # [HEADS, ROPE], pairs are (i, i + ROPE / 2)
    key_wave: Tensor  # [ROPE]
    bands: Tensor  # [HEADS, ROPE] amplitude of each rotary dimension


def _matching(gen: Generator, growth: float) -> _Matching:
    import torch

    features = normal(gen, FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    features[:, : 1 + CODE] = 0.0
    # one band of rotary pairs a head: the first looks at the last tokens (wavelengths 6 to 100),
    # the others at bands some hundred to some thousand tokens wide, which drift slowly
    pair = torch.arange(ROPE // 2)
    bands = torch.exp(-(((pair - torch.tensor(BANDS)[:, None]) / 4) ** 2)).repeat(1, 2)
    signs = torch.where(torch.rand(HEADS, FEATURES, generator=gen) < 0.5, -1.0, 1.0)
    signs[::2] = 1.0  # these heads match like with like, the others follow a random relation
    key_wave = normal(gen, ROPE)
    query_wave = bands * normal(gen, HEADS, ROPE)
    query_wave[0] = bands[0] * key_wave  # in phase at distance zero
    return _Matching(growth, features, signs, query_wave, key_wave, bands)


def _attention(gen: Generator, growth: float) -> dict[str, Tensor]:
    import torch

    match = _matching(gen, growth)
    rest = normal(gen, Q_LORA - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rest[0] = 0.0
    rest[0, 0] = growth  # latent FEATURES carries the shared dimension to the queries
    values = normal(gen, KV_LORA - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rope_key = normal(gen, ROPE, HIDDEN, scale=0.1 / math.sqrt(HIDDEN))
    rope_key[:, 0] += 0.25 * growth * _interleave(match.key_wave)

    expand = normal(gen, HEADS, NOPE + VALUE, KV_LORA, scale=1 / math.sqrt(KV_LORA))
    expand[:, :NOPE] *= 0.1
    expand[:, :FEATURES, :FEATURES] += torch.eye(FEATURES)
    query = normal(gen, HEADS, NOPE + ROPE, Q_LORA, scale=0.1 / math.sqrt(Q_LORA))
    query[:, :FEATURES, :FEATURES] += SOFTNESS * CONTENT * torch.diag_embed(match.signs)
    query[:, NOPE:, FEATURES] += SOFTNESS * WAVE * _interleave(match.query_wave)
    tensors = {
        "self_attn.q_a_proj.weight": torch.cat([match.features, rest]),
        "self_attn.q_a_layernorm.weight": gain(gen, Q_LORA),
        "self_attn.q_b_proj.weight": query.flatten(0, 1),
        "self_attn.kv_a_proj_with_mqa.weight": torch.cat([match.features, values, rope_key]),
        "self_attn.kv_a_layernorm.weight": gain(gen, KV_LORA),
        "self_attn.kv_b_proj.weight": expand.flatten(0, 1),
        "self_attn.o_proj.weight": to_stream(gen, HEADS * VALUE, 0.7),
        "input_layernorm.weight": gain(gen, HIDDEN),
        "post_attention_layernorm.weight": gain(gen, HIDDEN),
    }
    return tensors | _indexer(gen, match)


def _interleave(halves: Tensor) -> Tensor:
    """Reorder [..., ROPE] from the indexer's pairs (i, i + ROPE/2) to attention's (2i, 2i + 1)."""
    return halves.reshape(*halves.shape[:-1], 2, ROPE // 2).transpose(-1, -2).flatten(-2)


def _indexer(gen: Generator, match: _Matching) -> dict[str, Tensor]:
    """Index heads are blurred copies of the attention heads, as distillation would make them."""
    import torch

    copies = INDEX_HEADS // HEADS
    key = normal(gen, INDEX_DIM, HIDDEN, scale=0.1 / math.sqrt(HIDDEN))
    key[:ROPE, 0] += 0.25 * match.growth * match.key_wave
    key[ROPE:] += match.features[: INDEX_DIM - ROPE]
    query = normal(gen, INDEX_HEADS, INDEX_DIM, Q_LORA, scale=0.1 / math.sqrt(Q_LORA))
    blur = BLUR * match.bands.repeat(copies, 1) * normal(gen, INDEX_HEADS, ROPE)
    query[:, :ROPE, FEATURES] += WAVE * (match.query_wave.repeat(copies, 1) + blur)
    signs = match.signs.repeat(copies, 1) + BLUR * normal(gen, INDEX_HEADS, FEATURES)
    query[:, ROPE:, :FEATURES] += CONTENT * torch.diag_embed(signs)
    gate = normal(gen, INDEX_HEADS, HIDDEN, scale=0.5 / math.sqrt(HIDDEN))
    gate[:, 0] += match.growth * (normal(gen, INDEX_HEADS, scale=0.05) + 0.15)
    return {
        "self_attn.indexer.wq_b.weight": query.flatten(0, 1),
        "self_attn.indexer.wk.weight": key,
        "self_attn.indexer.k_norm.weight": gain(gen, INDEX_DIM),
        "self_attn.indexer.k_norm.bias": normal(gen, INDEX_DIM, scale=0.05),
        "self_attn.indexer.weights_proj.weight": gate,
    }


def _mlp(gen: Generator, prefix: str, width: int, strength: float) -> dict[str, Tensor]:
    names = ("gate_proj", "up_proj", "down_proj")
    parts = gated_mlp(gen, width, strength)
    return {f"{prefix}.{n}.weight": part for n, part in zip(names, parts, strict=True)}


def _feed_forward(gen: Generator, layer: int, head: Tensor | None) -> dict[str, Tensor]:
    """Dense MLP first, experts above; `head` [VOCAB, HIDDEN] aims the last shared expert."""
    if layer < CONFIG["first_k_dense_replace"]:
        return _mlp(gen, "mlp", CONFIG["intermediate_size"], 1.5)
    width = CONFIG["moe_intermediate_size"]
    tensors = {
        "mlp.gate.weight": router(gen),
        "mlp.gate.e_score_correction_bias": normal(gen, EXPERTS, scale=0.02),
    }
    for expert in range(EXPERTS):
        tensors |= _mlp(gen, f"mlp.experts.{expert}", width, 1.0)
    tensors |= _mlp(gen, "mlp.shared_experts", width, 1.0)
    if head is not None:
        tensors["mlp.shared_experts.down_proj.weight"] = aimed_at(head, width)
    return tensors
