"""transformers' DeepSeek-V3.2 as an oracle: `python -m tests.e2e._hf_oracle MODEL REQUEST ANSWER`.

A process of its own: transformers must believe that torchvision is absent (the wheel on a machine
without CUDA does not import), and nothing of SGLang or of this project's kernels may be near it.

REQUEST.npz: `lengths` [n]; per prompt i `ids_i` (prompt and continuation but its last token).
ANSWER.npz: per prompt i and variant, for the last prompt token and all later ones,
`<variant>_logits_i` [steps, vocab] and `<variant>_topk_i` [layers, steps, topk] (positions, ascending).
Variants: `plain`, transformers untouched, fp32; `stored`, with what the engine stores in small formats
rounded as the engine's formats would: latent cache bf16, index keys and queries fp8. `replica_gap`: how
far the indexer below is from transformers' own, with no rounding. `keys`: weights not matched at load.
"""

from __future__ import annotations

import sys

# read by transformers' availability check
sys.modules["torchvision"] = None  # type: ignore[assignment]

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as upstream

FP8_MAX = 448.0
SMALLEST_MAGNITUDE = 1e-4
ROWS = 512  # query rows scored at a time


@cache
def walsh_hadamard(size: int) -> Tensor:
    """Orthogonal [size, size] matrix of the indexer's rotation, by its definition (-1)^popcount(i & j)."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return torch.tensor(signs) * size**-0.5


def fp8_round_trip(x: Tensor) -> Tensor:
    """Rotate [..., 128], round to e4m3 with one power-of-two scale per vector, return it rotated."""
    rotated = x @ walsh_hadamard(x.shape[-1])
    largest = rotated.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_MAGNITUDE)
    scale = torch.exp2(torch.ceil(torch.log2(largest / FP8_MAX)))
    return (rotated / scale).to(torch.float8_e4m3fn).float() * scale


def untouched(x: Tensor) -> Tensor:
    return x


class Rounded(transformers.DynamicCache):
    """A cache that holds the latent as the engine holds it, in bf16."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **options: Any) -> Any:
        rounded = keys.bfloat16().to(keys.dtype), values.bfloat16().to(values.dtype)
        return super().update(*rounded, *args, **options)


def select(indexer: Any, quantise: Any, hidden: Tensor, q_resid: Tensor, rotary: Any) -> Tensor:
    """transformers' indexer for one whole sequence, written again so that q and k can be rounded.

    hidden [1, S, D], q_resid [1, S, R]; returns the chosen positions [1, S, topk], causal.
    """
    cos, sin = rotary
    rope = indexer.qk_rope_head_dim
    length = hidden.shape[1]
    query = indexer.wq_b(q_resid).view(1, length, indexer.n_heads, indexer.head_dim)
    key = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    query_rope, key_rope = upstream.apply_rotary_pos_emb(
        query[..., :rope], key[..., :rope], cos, sin, unsqueeze_dim=2
    )
    query = quantise(torch.cat([query_rope, query[..., rope:]], -1))[0]
    key = quantise(torch.cat([key_rope, key[..., rope:]], -1))[0, :, 0]
    gate = indexer.weights_proj(hidden)[0] * indexer.n_heads**-0.5 * indexer.softmax_scale
    chosen = []
    for start in range(0, length, ROWS):
        rows = slice(start, min(start + ROWS, length))
        relevant = torch.relu(torch.einsum("shd,td->sht", query[rows], key))
        scores = torch.einsum("sht,sh->st", relevant, gate[rows])
        future = torch.arange(length) > torch.arange(length)[rows, None]
        scores = scores.masked_fill(future, float("-inf"))
        # equal scores (ReLU makes exact zeros) go to the earlier token, as in the engine
        best = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        chosen.append(best[:, : indexer.index_topk])
    return torch.cat(chosen)[None].int()


@contextmanager
def watched(model: Any, quantise: Any | None) -> Iterator[list[Tensor]]:
    """Record every layer's choice [1, S, topk]; with `quantise`, choose by `select` instead."""
    record: list[Tensor] = []
    original = upstream.DeepseekV32Indexer.forward

    def forward(self: Any, hidden: Tensor, q_resid: Tensor, rotary: Any, *args: Any, **options: Any) -> Tensor:  # fmt: skip
        if quantise is None:
            chosen = original(self, hidden, q_resid, rotary, *args, **options)
        else:
            chosen = select(self, quantise, hidden, q_resid, rotary)
        record.append(chosen)
        return chosen

    upstream.DeepseekV32Indexer.forward = forward
    try:
        yield record
    finally:
        upstream.DeepseekV32Indexer.forward = original


@torch.inference_mode()
def run(model: Any, ids: Tensor, first: int, quantise: Any | None, cache: Any) -> tuple[Any, Any]:
    """Teacher-forced logits [steps, V] and choices [layers, steps, topk] from position `first` on."""
    with watched(model, quantise) as record:
        reply = model(ids[None], past_key_values=cache, use_cache=cache is not None)
    choices = torch.stack([c[0, first:] for c in record]).sort(-1).values
    return reply.logits[0, first:].numpy(), choices.numpy()


def main(folder: str, request: str, answer: str) -> None:
    """Answer every prompt of `request` in both variants."""
    torch.manual_seed(0)
    model, loading = transformers.DeepseekV32ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model.eval()
    given = np.load(request)
    out: dict[str, Any] = {}
    unmatched = (loading["missing_keys"], loading["unexpected_keys"], loading["mismatched_keys"])
    out["keys"] = np.array(sorted(str(key) for group in unmatched for key in group), dtype=str)
    gaps = []
    for i, length in enumerate(given["lengths"].tolist()):
        ids, first = torch.from_numpy(given[f"ids_{i}"]).long(), length - 1
        plain = run(model, ids, first, None, None)
        if i == 0:
            again = run(model, ids, first, untouched, None)
            gaps.append(np.abs(again[0] - plain[0]).max())
        cache = Rounded(config=model.config)
        stored = run(model, ids, first, fp8_round_trip, cache)
        for name, (logits, choices) in (("plain", plain), ("stored", stored)):
            out |= {f"{name}_logits_{i}": logits, f"{name}_topk_{i}": choices}
    np.savez(answer, replica_gap=np.array(gaps), **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
