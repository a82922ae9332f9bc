"""transformers' DeepSeek-V3.2 as an oracle: `python -m tests.e2e._hf_oracle MODEL REQUEST ANSWER`.

A process of its own, with nothing of SGLang or of this project's kernels in it. REQUEST (npz) holds
`lengths` [n] and per prompt i `ids_i` [S], the prompt and its continuation but for the last token,
and `selected_i` [layers, S, topk], the positions that the engine selected (-1 pads).
ANSWER (npz) holds, per prompt i and variant, for the last prompt token and every later one,
`<variant>_logits_i` [steps, vocab] and `<variant>_topk_i` [layers, steps, topk], ascending:

* `plain`: transformers as it is, float32.
* `stored`: float32, but what the engine stores or scores in a smaller format is rounded to it:
  the latent cache to bf16, index keys and index queries to fp8.
* `forced`: as `stored`, but with the engine's selections.
* `dense` (prompt 0 only): every token selected.

`replica_gap` is the largest logit difference between transformers' indexer and the one written
again below, without rounding. `unmatched` names weights that were missing, left over or misshapen.
"""
# ruff: noqa: E402  transformers asks for torchvision when imported, and must be told that it is absent

from __future__ import annotations

import sys

sys.modules["torchvision"] = None  # type: ignore[assignment]

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as upstream

from tests.e2e._oracle_parts import FP8_MAX, exact, load, walsh_hadamard

SMALLEST_MAGNITUDE = 1e-4
ROWS = 512  # query rows scored at a time, to bound memory

Rounding = Callable[[Tensor], Tensor]
# (indexer, hidden [1, S, D], query latent [1, S, R], rotary) -> chosen positions [1, S, topk]
Chooser = Callable[[Any, Tensor, Tensor, tuple[Tensor, Tensor]], Tensor]


def fp8(x: Tensor) -> Tensor:
    """Rotate [..., dim], round to e4m3 with one power-of-two scale a vector; stays rotated."""
    rotated = x @ walsh_hadamard(x.shape[-1])
    largest = rotated.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_MAGNITUDE)
    scale = torch.exp2(torch.ceil(torch.log2(largest / FP8_MAX)))
    return (rotated / scale).to(torch.float8_e4m3fn).float() * scale


class Bf16Cache(transformers.DynamicCache):
    """A cache whose latents are rounded to bf16, as the engine's are."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **options: Any) -> Any:
        """Round, then store; returns what attention reads."""
        rounded = keys.bfloat16().to(keys.dtype), values.bfloat16().to(values.dtype)
        return super().update(*rounded, *args, **options)


def rounded_indexer(rounding: Rounding) -> Chooser:
    """transformers' indexer with rounded q and k."""
    return lambda *call: select(rounding, *call)


def forced(selected: np.ndarray) -> Chooser:
    """Selections given as [layers, S, topk]; pads repeat the token's own position."""
    own = np.arange(selected.shape[1], dtype=selected.dtype)[None, :, None]
    choices = torch.from_numpy(np.where(selected >= 0, selected, own))
    return lambda indexer, *_call: choices[indexer.layer_idx][None]


def select(
    rounding: Rounding, indexer: Any, hidden: Tensor, latent: Tensor, rotary: tuple[Tensor, Tensor]
) -> Tensor:
    """A Chooser for a whole sequence: the indexer written again, so that q and k can be rounded."""
    rope, length = indexer.qk_rope_head_dim, hidden.shape[1]
    query = indexer.wq_b(latent).view(1, length, indexer.n_heads, indexer.head_dim)
    key = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    turned = upstream.apply_rotary_pos_emb(
        query[..., :rope], key[..., :rope], *rotary, unsqueeze_dim=2
    )
    query = rounding(torch.cat([turned[0], query[..., rope:]], -1))[0]
    key = rounding(torch.cat([turned[1], key[..., rope:]], -1))[0, :, 0]
    gate = indexer.weights_proj(hidden)[0] * indexer.n_heads**-0.5 * indexer.softmax_scale
    positions = torch.arange(length)
    chosen = []
    for rows in positions.split(ROWS):
        relevant = torch.relu(torch.einsum("shd,td->sht", query[rows], key))
        scores = torch.einsum("sht,sh->st", relevant, gate[rows])
        scores = scores.masked_fill(positions > rows[:, None], float("-inf"))
        # equal scores (ReLU makes exact zeros) go to the earlier token, as in the engine
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        chosen.append(order[:, : indexer.index_topk])
    return torch.cat(chosen)[None].int()


@contextmanager
def watched(chooser: Chooser | None) -> Iterator[list[Tensor]]:
    """Record each layer's choice [1, S, topk]; with a chooser, let it make the choice."""
    record: list[Tensor] = []
    original = upstream.DeepseekV32Indexer.forward

    def forward(self: Any, hidden: Tensor, latent: Tensor, rotary: Any, *rest: Any, **options: Any) -> Tensor:  # noqa: E501  # fmt: skip
        if chooser is None:
            chosen = original(self, hidden, latent, rotary, *rest, **options)
        else:
            chosen = chooser(self, hidden, latent, rotary)
        record.append(chosen)
        return chosen

    upstream.DeepseekV32Indexer.forward = forward
    try:
        yield record
    finally:
        upstream.DeepseekV32Indexer.forward = original


@torch.inference_mode()
def run(
    model: Any, ids: Tensor, first: int, chooser: Chooser | None, store: Any = None
) -> tuple[Any, Any]:
    """Logits [steps, V] and choices [layers, steps, topk], from position `first` of `ids` on."""
    with watched(chooser) as record:
        reply = model(ids[None], past_key_values=store, use_cache=store is not None)
    choices = torch.stack([chosen[0, first:] for chosen in record]).sort(-1).values
    return reply.logits[0, first:].numpy(), choices.numpy()


def dense(model: Any, ids: Tensor, first: int) -> tuple[Any, Any]:
    """As `run`, with every earlier token selected."""
    indexers = [layer.self_attn.indexer for layer in model.model.layers]
    usual = indexers[0].index_topk
    for indexer in indexers:
        indexer.index_topk = len(ids)
    answer = run(model, ids, first, rounded_indexer(exact))
    for indexer in indexers:
        indexer.index_topk = usual
    return answer


def main(folder: str, request: str, answer: str) -> None:
    """Answer every prompt of `request`."""
    model, unmatched = load(transformers.DeepseekV32ForCausalLM, folder)
    out: dict[str, Any] = {"unmatched": unmatched}
    given = np.load(request)
    for i, length in enumerate(given["lengths"].tolist()):
        ids, first = torch.from_numpy(given[f"ids_{i}"]).long(), length - 1
        variants = {
            "plain": run(model, ids, first, None),
            "stored": run(model, ids, first, rounded_indexer(fp8), Bf16Cache(config=model.config)),
            "forced": run(
                model, ids, first, forced(given[f"selected_{i}"]), Bf16Cache(config=model.config)
            ),
        }
        if i == 0:
            gap = run(model, ids, first, rounded_indexer(exact))[0] - variants["plain"][0]
            out["replica_gap"] = np.abs(gap).max()
            variants["dense"] = dense(model, ids, first)
        for name, (logits, choices) in variants.items():
            out |= {f"{name}_logits_{i}": logits, f"{name}_topk_{i}": choices}
    np.savez(answer, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
