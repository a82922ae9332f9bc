"""`tiny-dsa`: a DeepSeek-V3.2 small enough for a CPU, whose sparse selection still matters.

The weights are drawn from a seed, but not blindly. Plain noise gives scores that are alike
everywhere, and then no block is worth predicting. Four properties are put in by construction:

* Tokens form topics (`TOPICS` runs of consecutive ids), and all embeddings share one direction. The
  shared direction gives every query a constant part, so successive steps look at the same blocks;
  topics make neighbouring tokens alike, so importance comes in blocks.
* Index keys and attention keys read the same features. What the indexer ranks low the attention would
  have weighted low, as in a trained model; a wrong selection changes the output, a swap at the
  boundary of the top-k hardly does.
* A few stream dimensions carry a code of the token that no layer overwrites, and the expert router
  reads mostly that code. Expert choices then have wide margins and do not flip with rounding.
* The last shared expert writes along output rows, which makes logits heavy-tailed: the best token
  stands clear of the second.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

SEED = 20_1109
TOPICS = 32

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}

HIDDEN: int = CONFIG["hidden_size"]
VOCAB: int = CONFIG["vocab_size"]
LAYERS: int = CONFIG["num_hidden_layers"]
HEADS: int = CONFIG["num_attention_heads"]
Q_LORA: int = CONFIG["q_lora_rank"]
KV_LORA: int = CONFIG["kv_lora_rank"]
ROPE: int = CONFIG["qk_rope_head_dim"]
NOPE: int = CONFIG["qk_nope_head_dim"]
VALUE: int = CONFIG["v_head_dim"]
INDEX_HEADS: int = CONFIG["index_n_heads"]
INDEX_DIM: int = CONFIG["index_head_dim"]
EXPERTS: int = CONFIG["n_routed_experts"]
CODE = EXPERTS  # stream dimensions that carry the token's routing code
# the stream widens from layer to layer while its shared dimension stays: readers make up for it
STREAM_GROWTH = (1.0, 1.4, 1.7, 2.0)
FEATURES = 64  # shared by index keys and attention keys


def fingerprint() -> str:
    """Hash of this file: any change of the generator gives the model another folder."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (bf16, Hugging Face names) into `folder`."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights(), str(folder / "model.safetensors"), metadata={"format": "pt"})


def weights(seed: int = SEED) -> dict[str, Tensor]:
    """All parameters by Hugging Face name: bf16, the routing bias fp32. Same seed, same bits."""
    import torch

    gen = torch.Generator().manual_seed(seed)
    head = _normal(gen, VOCAB, HIDDEN, scale=3 / math.sqrt(HIDDEN))
    tensors = {
        "model.embed_tokens.weight": _embedding(gen),
        "model.norm.weight": _gain(gen, HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        last = layer == LAYERS - 1
        block = _attention(gen, STREAM_GROWTH[layer]) | _feed_forward(gen, layer, head if last else None)
        for name, tensor in block.items():
            tensors[prefix + name] = tensor
    return {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.bfloat16()
        for name, tensor in tensors.items()
    }


def _normal(gen: Generator, *shape: int, scale: float = 1.0) -> Tensor:
    import torch

    return torch.randn(*shape, generator=gen) * scale


def _gain(gen: Generator, width: int) -> Tensor:
    """Norm weight near one, uneven so that a forgotten weight shows."""
    return 1 + _normal(gen, width, scale=0.1)


def _embedding(gen: Generator) -> Tensor:
    """[VOCAB, HIDDEN]: dimension 0 is shared by all, then CODE routing dimensions, then topic + token."""
    import torch

    topic = _normal(gen, TOPICS, HIDDEN).repeat_interleave(VOCAB // TOPICS, 0)
    table = 0.8 * topic + 0.6 * _normal(gen, VOCAB, HIDDEN)
    table[:, 0] = 8.0
    codes = torch.randint(0, EXPERTS, (VOCAB,), generator=gen)
    partner = torch.randint(1, EXPERTS, (VOCAB,), generator=gen)
    table[:, 1 : 1 + CODE] = 0.0
    rows = torch.arange(VOCAB)
    table[rows, 1 + codes] = 4.0
    table[rows, 1 + (codes + partner) % EXPERTS] = 3.0
    return table


def _to_stream(gen: Generator, fan_in: int, gain: float) -> Tensor:
    """[HIDDEN, fan_in] output projection that leaves the shared and the code dimensions alone."""
    weight = _normal(gen, HIDDEN, fan_in, scale=gain / math.sqrt(fan_in))
    weight[: 1 + CODE] = 0.0
    return weight


def _features(gen: Generator) -> Tensor:
    """[FEATURES, HIDDEN] random directions of the stream beyond the shared and code dimensions."""
    weight = _normal(gen, FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    weight[:, : 1 + CODE] = 0.0
    return weight


def _attention(gen: Generator, growth: float) -> dict[str, Tensor]:
    """MLA and its indexer; both match FEATURES of query and key and share the constant dimension."""
    import torch

    features = _features(gen)
    rest = _normal(gen, Q_LORA - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rest[0] = 0.0
    rest[0, 0] = growth  # latent FEATURES carries the shared dimension to the queries
    values = _normal(gen, KV_LORA - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rope_key = _normal(gen, ROPE, HIDDEN, scale=0.5 / math.sqrt(HIDDEN))
    rope_key[:, 0] = _normal(gen, ROPE, scale=0.3 * growth)

    expand = _normal(gen, HEADS, NOPE + VALUE, KV_LORA, scale=1 / math.sqrt(KV_LORA))
    expand[:, :NOPE] *= 0.3
    expand[:, :FEATURES, :FEATURES] += torch.eye(FEATURES)
    query = _normal(gen, HEADS, NOPE + ROPE, Q_LORA, scale=0.3 / math.sqrt(Q_LORA))
    for head in range(HEADS):
        query[head, :FEATURES, :FEATURES] += 2.0 * torch.diag(_signs(gen, FEATURES, head % 2 == 0))
    query[:, NOPE:, FEATURES] += _normal(gen, HEADS, ROPE, scale=0.3)
    tensors = {
        "self_attn.q_a_proj.weight": torch.cat([features, rest]),
        "self_attn.q_a_layernorm.weight": _gain(gen, Q_LORA),
        "self_attn.q_b_proj.weight": query.flatten(0, 1),
        "self_attn.kv_a_proj_with_mqa.weight": torch.cat([features, values, rope_key]),
        "self_attn.kv_a_layernorm.weight": _gain(gen, KV_LORA),
        "self_attn.kv_b_proj.weight": expand.flatten(0, 1),
        "self_attn.o_proj.weight": _to_stream(gen, HEADS * VALUE, 1.0),
        "input_layernorm.weight": _gain(gen, HIDDEN),
        "post_attention_layernorm.weight": _gain(gen, HIDDEN),
    }
    return tensors | _indexer(gen, features, growth)


def _signs(gen: Generator, count: int, positive: bool) -> Tensor:
    """[count] of ones (a head that matches like with like) or of random signs (a random relation)."""
    import torch

    ones = torch.ones(count)
    return ones if positive else torch.where(torch.rand(count, generator=gen) < 0.5, -ones, ones)


def _indexer(gen: Generator, features: Tensor, growth: float) -> dict[str, Tensor]:
    """Index heads: first ROPE dimensions positional (constant part, slow waves), the rest content."""
    import torch

    # pairs (i, i + ROPE/2) rotate together; the slow ones get the weight, so importance drifts slowly
    slow = torch.linspace(0.0, 1.0, ROPE // 2).repeat(2)
    key = _normal(gen, INDEX_DIM, HIDDEN, scale=0.2 / math.sqrt(HIDDEN))
    key[:ROPE, 0] += 0.25 * growth * slow * _normal(gen, ROPE)
    key[ROPE:] += features[: INDEX_DIM - ROPE]
    query = _normal(gen, INDEX_HEADS, INDEX_DIM, Q_LORA, scale=0.2 / math.sqrt(Q_LORA))
    query[:, :ROPE, FEATURES] += slow * _normal(gen, INDEX_HEADS, ROPE)
    for head in range(INDEX_HEADS):
        query[head, ROPE:, :FEATURES] += 0.7 * torch.diag(_signs(gen, FEATURES, head % 2 == 0))
    gate = _normal(gen, INDEX_HEADS, HIDDEN, scale=0.5 / math.sqrt(HIDDEN))
    gate[:, 0] += growth * (_normal(gen, INDEX_HEADS, scale=0.1) + 0.15)
    return {
        "self_attn.indexer.wq_b.weight": query.flatten(0, 1),
        "self_attn.indexer.wk.weight": key,
        "self_attn.indexer.k_norm.weight": _gain(gen, INDEX_DIM),
        "self_attn.indexer.k_norm.bias": _normal(gen, INDEX_DIM, scale=0.05),
        "self_attn.indexer.weights_proj.weight": gate,
    }


def _mlp(gen: Generator, prefix: str, width: int, gain: float) -> dict[str, Tensor]:
    inward = 1 / math.sqrt(HIDDEN)
    return {
        f"{prefix}.gate_proj.weight": _normal(gen, width, HIDDEN, scale=inward),
        f"{prefix}.up_proj.weight": _normal(gen, width, HIDDEN, scale=inward),
        f"{prefix}.down_proj.weight": _to_stream(gen, width, gain),
    }


def _feed_forward(gen: Generator, layer: int, head: Tensor | None) -> dict[str, Tensor]:
    """Dense MLP in the first layers, experts above; `head` [VOCAB, HIDDEN] aims the last shared expert."""
    if layer < CONFIG["first_k_dense_replace"]:
        return _mlp(gen, "mlp", CONFIG["intermediate_size"], 1.5)
    width = CONFIG["moe_intermediate_size"]
    router = _normal(gen, EXPERTS, HIDDEN, scale=0.1 / math.sqrt(HIDDEN))
    router[:, 1 : 1 + EXPERTS] += _permutation(gen, EXPERTS)
    tensors = {
        "mlp.gate.weight": router,
        "mlp.gate.e_score_correction_bias": _normal(gen, EXPERTS, scale=0.02),
    }
    for expert in range(EXPERTS):
        tensors |= _mlp(gen, f"mlp.experts.{expert}", width, 1.0)
    tensors |= _mlp(gen, "mlp.shared_experts", width, 1.0)
    if head is not None:
        aim = head[:: VOCAB // width].T.contiguous()
        aim[: 1 + CODE] = 0.0
        tensors["mlp.shared_experts.down_proj.weight"] = aim
    return tensors


def _permutation(gen: Generator, count: int) -> Tensor:
    import torch

    return torch.eye(count)[torch.randperm(count, generator=gen)]
