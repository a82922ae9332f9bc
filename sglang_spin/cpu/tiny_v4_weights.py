"""Weights of `tiny-v4`, drawn from a seed with the structure of `tiny-dsa`'s (tiny_dsa_weights).

What V4 changes: a key is its own value, queries and keys are normalised, an entry stands for a
window of tokens, and the residual is four streams. The compressors see the features that attention
sees, with small gates of their own; the streams are collapsed, expanded and mixed unevenly, so that
a forgotten weight shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_spin.cpu.tiny_stream import (
    EXPERTS,
    HIDDEN,
    VOCAB,
    aimed_at,
    embedding,
    gain,
    gated_mlp,
    normal,
    router,
    successors,
    to_stream,
)
from sglang_spin.cpu.tiny_v4 import CONFIG

if TYPE_CHECKING:
    from torch import Generator, Tensor

SEED = 20_1110

LAYERS, HEADS = int(CONFIG["num_hidden_layers"]), int(CONFIG["num_attention_heads"])
DIM, ROPE, Q_LORA = (
    int(CONFIG["head_dim"]),
    int(CONFIG["qk_rope_head_dim"]),
    int(CONFIG["q_lora_rank"]),
)
NOPE = DIM - ROPE
GROUPS, O_LORA = int(CONFIG["o_groups"]), int(CONFIG["o_lora_rank"])
INDEX_HEADS, INDEX_DIM = int(CONFIG["index_n_heads"]), int(CONFIG["index_head_dim"])
WIDTH, STREAMS = int(CONFIG["moe_intermediate_size"]), int(CONFIG["hc_mult"])
RATIOS: list[int] = CONFIG["compress_ratios"]

FEATURES = 64  # content features that index keys and attention keys share
CONTENT = 0.7  # strength of content matching in a score
WAVE = 0.4  # strength of distance matching
BANDS = (4.0, 11.0, 14.0, 17.0)  # centre of each head's band of rotary pairs
BLUR = 0.3  # relative noise between an attention head and its copies among the index heads
GATE = 0.5  # spread of a compressor's gates: no token of a window is lost, none counts alone
FP32 = ("attn_sink", "ape", "bias", "base", "scale", "_fn")


def weights(seed: int = SEED) -> dict[str, Tensor]:
    """All parameters by DeepSeek's names, bf16 or as FP32 says. Same seed, same bits."""
    import torch

    gen = torch.Generator().manual_seed(seed)
    base = normal(gen, VOCAB, HIDDEN, scale=3 / math.sqrt(HIDDEN))
    table = embedding(gen)
    tensors = {
        "embed.weight": table,
        "norm.weight": gain(gen, HIDDEN),
        "head.weight": base + successors(gen, table),
        "hc_head_fn": normal(gen, STREAMS, STREAMS * HIDDEN, scale=0.02),
        "hc_head_base": normal(gen, STREAMS, scale=0.3) - 1.0,
        "hc_head_scale": gain(gen, 1),
    }
    for layer, ratio in enumerate(RATIOS):
        block = _attention(gen, ratio) | _experts(gen, layer, base) | _streams(gen)
        tensors |= {f"layers.{layer}.{name}": tensor for name, tensor in block.items()}
    return {name: _stored(name, tensor) for name, tensor in tensors.items()}


def _stored(name: str, tensor: Tensor) -> Tensor:
    kept = not tensor.is_floating_point() or name.endswith(FP32)
    return (tensor if kept else tensor.bfloat16()).contiguous()


@dataclass(frozen=True)
class _Matching:
    """What decides the scores of one layer; its attention heads and its indexer both read it.

    A query is matched on content (features of the stream, one sign per feature and head) and on
    distance (a constant vector that the rotary embedding turns into waves).
    """

    features: Tensor  # [FEATURES, HIDDEN] stream -> content features
    signs: Tensor  # [HEADS, FEATURES]
    query_wave: Tensor  # [HEADS, ROPE], pairs are (2i, 2i + 1)
    key_wave: Tensor  # [ROPE]
    bands: Tensor  # [HEADS, ROPE] amplitude of each rotary dimension


def _matching(gen: Generator) -> _Matching:
    import torch

    features = normal(gen, FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    features[:, : 1 + EXPERTS] = 0.0
    # one band of rotary pairs a head: the first looks at tens of tokens, the others at bands some
    # hundred to some thousand tokens wide, which drift slowly
    pair = torch.arange(ROPE // 2)
    bands = torch.exp(-(((pair - torch.tensor(BANDS)[:, None]) / 4) ** 2)).repeat_interleave(2, 1)
    signs = torch.where(torch.rand(HEADS, FEATURES, generator=gen) < 0.5, -1.0, 1.0)
    signs[::2] = 1.0  # these heads match like with like, the others follow a random relation
    key_wave = normal(gen, ROPE)
    query_wave = bands * normal(gen, HEADS, ROPE)
    query_wave[0] = bands[0] * key_wave  # in phase at distance zero
    return _Matching(features, signs, query_wave, key_wave, bands)


def _attention(gen: Generator, ratio: int) -> dict[str, Tensor]:
    import torch

    match = _matching(gen)
    rest = normal(gen, Q_LORA - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rest[0] = 0.0
    rest[0, 0] = 1.0  # latent FEATURES carries the shared dimension to the queries
    query = normal(gen, HEADS, DIM, Q_LORA, scale=0.1 / math.sqrt(Q_LORA))
    query[:, :FEATURES, :FEATURES] += CONTENT * torch.diag_embed(match.signs)
    query[:, NOPE:, FEATURES] += WAVE * match.query_wave
    outputs = HEADS * DIM // GROUPS
    tensors = {
        "wq_a.weight": torch.cat([match.features, rest]),
        "q_norm.weight": gain(gen, Q_LORA),
        "wq_b.weight": query.flatten(0, 1),
        "wkv.weight": _key(gen, match, DIM),
        "kv_norm.weight": gain(gen, DIM),
        "wo_a.weight": normal(gen, GROUPS * O_LORA, outputs, scale=1 / math.sqrt(outputs)),
        "wo_b.weight": to_stream(gen, GROUPS * O_LORA, 1.5),
        "attn_sink": normal(gen, HEADS, scale=0.5),
    }
    if ratio:
        tensors |= _compressor(gen, match, ratio, DIM, "compressor")
    if ratio == 4:
        tensors |= _indexer(gen, match)
    named = {f"attn.{name}": tensor for name, tensor in tensors.items()}
    norms = {f"{name}.weight": gain(gen, HIDDEN) for name in ("attn_norm", "ffn_norm")}
    return named | norms


def _key(gen: Generator, match: _Matching, dim: int) -> Tensor:
    """[dim, HIDDEN]: content features, values, and at the end a vector for distance matching."""
    import torch

    values = normal(gen, dim - ROPE - FEATURES, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    rope = normal(gen, ROPE, HIDDEN, scale=0.1 / math.sqrt(HIDDEN))
    rope[:, 0] += 0.25 * match.key_wave
    return torch.cat([match.features, values, rope])


def _compressor(
    gen: Generator, match: _Matching, ratio: int, dim: int, prefix: str
) -> dict[str, Tensor]:
    """Both series of an overlapping compressor see the same features, blurred each in its way."""
    import torch

    series = 2 if ratio == 4 else 1
    blur = BLUR * normal(gen, series * dim, HIDDEN, scale=1 / math.sqrt(HIDDEN))
    key = _key(gen, match, dim)
    return {
        f"{prefix}.wkv.weight": torch.cat([key] * series) + blur,
        f"{prefix}.wgate.weight": normal(gen, series * dim, HIDDEN, scale=GATE / math.sqrt(HIDDEN)),
        f"{prefix}.ape": normal(gen, ratio, series * dim, scale=GATE),
        f"{prefix}.norm.weight": gain(gen, dim),
    }


def _indexer(gen: Generator, match: _Matching) -> dict[str, Tensor]:
    """Index heads are blurred copies of the attention heads, as distillation would make them."""
    import torch

    copies = INDEX_HEADS // HEADS
    nope = INDEX_DIM - ROPE
    query = normal(gen, INDEX_HEADS, INDEX_DIM, Q_LORA, scale=0.1 / math.sqrt(Q_LORA))
    blur = BLUR * match.bands.repeat(copies, 1) * normal(gen, INDEX_HEADS, ROPE)
    query[:, nope:, FEATURES] += WAVE * (match.query_wave.repeat(copies, 1) + blur)
    signs = match.signs.repeat(copies, 1) + BLUR * normal(gen, INDEX_HEADS, FEATURES)
    query[:, :nope, :FEATURES] += CONTENT * torch.diag_embed(signs)
    gate = normal(gen, INDEX_HEADS, HIDDEN, scale=0.5 / math.sqrt(HIDDEN))
    gate[:, 0] += normal(gen, INDEX_HEADS, scale=0.05) + 0.15
    return {
        "indexer.wq_b.weight": query.flatten(0, 1),
        "indexer.weights_proj.weight": gate,
    } | _compressor(gen, match, 4, INDEX_DIM, "indexer.compressor")


def _experts(gen: Generator, layer: int, head: Tensor) -> dict[str, Tensor]:
    """Routed and shared experts; `head` [VOCAB, HIDDEN] aims the last layer's shared expert."""
    import torch

    tensors = {"gate.weight": router(gen)}
    if layer < CONFIG["num_hash_layers"]:
        ranks = torch.rand(VOCAB, EXPERTS, generator=gen).argsort(-1)
        tensors["gate.tid2eid"] = ranks[:, : CONFIG["num_experts_per_tok"]].int()
    else:
        tensors["gate.bias"] = normal(gen, EXPERTS, scale=0.02)
    for name in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_experts"):
        w1, w3, w2 = gated_mlp(gen, WIDTH, 1.0)
        tensors |= {f"{name}.w1.weight": w1, f"{name}.w2.weight": w2, f"{name}.w3.weight": w3}
    if layer == LAYERS - 1:
        tensors["shared_experts.w2.weight"] = aimed_at(head, WIDTH)
    return {f"ffn.{name}": tensor for name, tensor in tensors.items()}


def _streams(gen: Generator) -> dict[str, Tensor]:
    """Hyper-connections that collapse to about a mean, expand to about one, and mix a little."""
    import torch

    count = (2 + STREAMS) * STREAMS
    tensors: dict[str, Tensor] = {}
    for part in ("attn", "ffn"):
        base = normal(gen, count, scale=0.3)
        base[:STREAMS] -= 1.1  # the sigmoid of -1.1 is 1/4
        base[2 * STREAMS :] += 2 * torch.eye(STREAMS).flatten()
        tensors |= {
            f"hc_{part}_fn": normal(gen, count, STREAMS * HIDDEN, scale=0.02),
            f"hc_{part}_base": base,
            f"hc_{part}_scale": gain(gen, 3),
        }
    return tensors
