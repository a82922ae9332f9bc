"""transformers' DeepSeek-V4 on the engine's prompts: run with FOLDER, REQUEST and ANSWER.

A process of its own, with nothing of SGLang or of this project's kernels in it. REQUEST and ANSWER
are those of _hf_oracle, with selections of C4 entries [C4 layers, S, 512]. The variants too:

* `plain`: transformers as it is, float32.
* `stored`: float32, but what the engine stores or scores in a smaller format is rounded to it: keys
  (which are values) to 448 fp8 values with a power-of-two scale for each 64 and 64 bf16 values;
  index keys and queries to fp8 with a scale each, after a Hadamard rotation.
* `forced`: as `stored`, but with the engine's selections.
* `dense` (last prompt only): every entry selected.

`replica_gap` is the largest logit difference between transformers' own indexer and attention and
those written again below, without rounding.
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
from torch.nn import functional
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as upstream

from tests.e2e._oracle_parts import FP8_MAX, exact, load, walsh_hadamard

SMALLEST = 1e-4
NOPE, GROUP, WINDOW = 448, 64, 128
ROWS = 256  # query rows at a time, to bound memory

Rounding = Callable[[Tensor], Tensor]
# (indexer, hidden [1, S, D], query latent [1, S, R], positions [1, S]) -> entries [1, S, k], or -1
Chooser = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def index_fp8(x: Tensor) -> Tensor:
    """Rotate [..., dim], round to e4m3 with one scale a vector; stays rotated."""
    rotated = x @ walsh_hadamard(x.shape[-1])
    scale = rotated.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / FP8_MAX
    return (rotated / scale).to(torch.float8_e4m3fn).float() * scale


def cache_row(x: Tensor) -> Tensor:
    """Keys [..., 512] as the engine's cache holds them."""
    groups = x[..., :NOPE].unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    scale = torch.exp2(torch.ceil(torch.log2(largest / FP8_MAX)))
    values = (groups / scale).to(torch.float8_e4m3fn).float() * scale
    return torch.cat([values.flatten(-2), x[..., NOPE:].bfloat16().float()], -1)


def select(
    rounding: Rounding, indexer: Any, hidden: Tensor, latent: Tensor, positions: Tensor
) -> Tensor:
    """A Chooser for a whole sequence: the indexer written again, so that q and k can be rounded."""
    keys = rounding(_index_keys(indexer, hidden))
    length = hidden.shape[1]
    rotary = indexer.rotary_emb(hidden, position_ids=positions, layer_type="compress")
    query = indexer.q_b_proj(latent).view(1, length, indexer.num_heads, indexer.head_dim)
    query = rounding(upstream.apply_rotary_pos_emb(query.transpose(1, 2), *rotary)[0]).transpose(
        0, 1
    )
    scorer = indexer.scorer
    gate = scorer.weights_proj(hidden)[0] * scorer.weights_scaling * scorer.softmax_scale
    ready = (torch.arange(length) + 1) // indexer.compress_rate
    chosen = []
    for rows in torch.arange(length).split(ROWS):
        relevant = torch.relu(torch.einsum("shd,td->sht", query[rows], keys))
        scores = torch.einsum("sht,sh->st", relevant, gate[rows])
        future = torch.arange(len(keys)) >= ready[rows, None]
        scores = scores.masked_fill(future, float("-inf"))
        # equal scores (ReLU makes exact zeros) go to the earlier entry, as in the engine
        order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
        order = order[:, : indexer.index_topk]
        chosen.append(torch.where(order >= ready[rows, None], -1, order))
    return torch.cat(chosen)[None]


def _index_keys(indexer: Any, hidden: Tensor) -> Tensor:
    """Compressed index keys [entries, dim] of a whole sequence, from overlapping windows."""
    rate, dim = indexer.compress_rate, indexer.head_dim
    entries = hidden.shape[1] // rate
    kv, gate = (p(hidden)[0, : entries * rate] for p in (indexer.kv_proj, indexer.gate_proj))
    kv = kv.view(entries, rate, 2, dim)
    gate = gate.view(entries, rate, 2, dim) + indexer.position_bias.view(rate, 2, dim)
    before = functional.pad(kv[:-1, :, 0], (0, 0, 0, 0, 1, 0))
    weight = functional.pad(gate[:-1, :, 0], (0, 0, 0, 0, 1, 0), value=float("-inf"))
    share = torch.cat([weight, gate[:, :, 1]], 1).softmax(1)
    merged = indexer.kv_norm((torch.cat([before, kv[:, :, 1]], 1) * share).sum(1))
    starts = (torch.arange(entries) * rate)[None]
    rotary = indexer.rotary_emb(merged, position_ids=starts, layer_type="compress")
    return upstream.apply_rotary_pos_emb(merged[None, None], *rotary)[0, 0]


def windowed_attention(rounding: Rounding) -> Callable[..., tuple[Tensor, None]]:
    """transformers' eager attention over whole sequences, by rows, with rounded keys.

    Of the sequence's own keys a row can see only the window; entries follow them in `key`.
    """

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        _value: Tensor,
        mask: Tensor,
        scaling: float,
        **_: Any,
    ) -> tuple[Tensor, None]:
        keys, length = rounding(key[0, 0]), query.shape[2]
        sinks = module.sinks.view(-1, 1, 1)
        out = []
        for rows in torch.arange(length).split(ROWS):
            begin = max(0, int(rows[0]) - WINDOW + 1)
            seen = torch.cat(
                [torch.arange(begin, int(rows[-1]) + 1), torch.arange(length, len(keys))]
            )
            logits = query[0][:, rows] @ keys[seen].T * scaling + mask[0, 0][rows][:, seen]
            shares = torch.cat([logits, sinks.expand(-1, len(rows), 1)], -1).softmax(-1)
            out.append(shares[..., :-1] @ keys[seen])
        return torch.cat(out, 1).transpose(0, 1)[None].contiguous(), None

    return attend


@contextmanager
def patched(chooser: Chooser | None, attention: Any) -> Iterator[list[Tensor]]:
    """Record each C4 layer's choice [1, S, k]; replace indexer and attention where asked to."""
    record: list[Tensor] = []
    indexer, eager = upstream.DeepseekV4Indexer.forward, upstream.eager_attention_forward

    def forward(self: Any, hidden: Tensor, latent: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        if chooser is None:
            chosen = indexer(self, hidden, latent, positions, *rest)
        else:
            chosen = chooser(self, hidden, latent, positions)
        record.append(chosen)
        return chosen

    upstream.DeepseekV4Indexer.forward = forward
    upstream.eager_attention_forward = attention or eager
    try:
        yield record
    finally:
        upstream.DeepseekV4Indexer.forward = indexer
        upstream.eager_attention_forward = eager


@torch.inference_mode()
def run(
    model: Any, ids: Tensor, first: int, chooser: Chooser | None = None, rounding: Any = None
) -> tuple[Any, Any]:
    """Logits [steps, V] and choices [C4 layers, steps, 512], from position `first` of `ids` on."""
    with patched(chooser, windowed_attention(rounding) if rounding else None) as record:
        reply = model(ids[None], use_cache=False)
    topk = model.config.index_topk
    choices = [
        functional.pad(c[0, first:, :topk], (0, max(0, topk - c.shape[-1])), value=-1)
        for c in record
    ]
    return reply.logits[0, first:].numpy(), torch.stack(choices).sort(-1).values.numpy()


def forced(selected: np.ndarray) -> Chooser:
    """Selections given as [C4 layers, S, 512], layer after layer."""
    layers = iter(torch.from_numpy(selected).long())
    return lambda *_call: next(layers)[None]


def everything(_indexer: Any, hidden: Tensor, *_rest: Tensor) -> Tensor:
    """Every entry that is complete."""
    length = hidden.shape[1]
    entries = torch.arange(length // 4).expand(length, -1)
    return torch.where(entries < ((torch.arange(length) + 1) // 4)[:, None], entries, -1)[None]


def main(folder: str, request: str, answer: str) -> None:
    """Answer every prompt of `request`."""
    model, unmatched = load(transformers.DeepseekV4ForCausalLM, folder)
    out: dict[str, Any] = {"unmatched": unmatched}
    given = np.load(request)
    lengths = given["lengths"].tolist()
    rounded = lambda *call: select(index_fp8, *call)  # noqa: E731
    for i, length in enumerate(lengths):
        ids, first = torch.from_numpy(given[f"ids_{i}"]).long(), length - 1
        variants = {
            "plain": run(model, ids, first),
            "stored": run(model, ids, first, rounded, cache_row),
            "forced": run(model, ids, first, forced(given[f"selected_{i}"]), cache_row),
        }
        if i == 0:
            replica = run(model, ids, first, lambda *call: select(exact, *call), exact)
            out["replica_gap"] = np.abs(replica[0] - variants["plain"][0]).max()
            out["replica_same_choice"] = (replica[1] == variants["plain"][1]).mean()
        if i == len(lengths) - 1:
            variants["dense"] = run(model, ids, first, everything, exact)
        for name, (logits, choices) in variants.items():
            out |= {f"{name}_logits_{i}": logits, f"{name}_topk_{i}": choices}
    np.savez(answer, **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
