"""What the CPU engine's stand-ins do not compute is refused by name, never computed wrongly."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_spin.cpu.patches import attention, indexer, speculative, topk
from sglang_spin.cpu.patches.v4 import attention as v4_attention
from sglang_spin.cpu.patches.v4 import compressor
from sglang_spin.cpu.patches.v4 import indexer as v4_indexer

NONE = torch.zeros(1)
QUERY = torch.zeros(1, 1, 32, 128)


def _fa3() -> None:
    names = ("q", "k_cache", "v_cache", "qv", "page_table", "cache_seqlens")
    attention._decode(**dict.fromkeys(names, NONE), softmax_scale=1.0, softcap=30.0)


def _sinks() -> None:
    attention._prefill(None, NONE, NONE, 128, NONE, 1.0, attn_sink=NONE)


def _paged(query: torch.Tensor, **options: Any) -> None:
    indexer._score_paged(query, NONE, NONE, NONE, NONE, NONE, 64, **options)


def _ragged() -> None:
    indexer._score_ragged(NONE, (NONE, NONE), NONE, NONE, NONE, clean_logits=True)


def _c4_scores() -> None:
    v4_indexer._score(QUERY, NONE, NONE, NONE, NONE, NONE, 64, clean_logits=True)


def _topk() -> None:
    topk._paged(NONE, NONE, None, NONE, 64, NONE)


def _tree() -> None:
    speculative._build_tree(*[NONE] * 8, 2, 1, 4, 0)


def _values(head_dim_v: int) -> None:
    names = ("indices", "topk_length", "attn_sink")
    extra = ("extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length")
    v4_attention._attend(
        q=torch.zeros(1, 1, 4, 512),
        k_cache=torch.zeros(1, 256, 1, 100, dtype=torch.uint8),
        head_dim_v=head_dim_v,
        softmax_scale=1.0,
        **dict.fromkeys(names, torch.zeros(1, 1, 1)),
        **dict.fromkeys(extra),
    )


def _merge(**options: Any) -> None:
    names = ("kv_score_buffer", "kv_score_input", "ape")
    compressor._compress(
        **dict.fromkeys(names, NONE),
        plan=SimpleNamespace(),
        head_dim=128,
        compress_ratio=4,
        **({"out": None} | options),
    )


REFUSED: dict[str, tuple[Callable[[], None], str]] = {
    "soft cap": (_fa3, "no logit soft cap"),
    "prefill sinks": (_sinks, "no sinks"),
    "two queries a row": (lambda: _paged(torch.zeros(1, 2, 32, 128)), "one query per row"),
    "clean logits": (lambda: _paged(QUERY, clean_logits=True), "one query per row, unclean"),
    "indices": (lambda: _paged(QUERY, indices=NONE), "no indices"),
    "clean prefill logits": (_ragged, "columns out of range uninitialised"),
    "clean C4 logits": (_c4_scores, "columns out of range uninitialised"),
    "logical top-k": (_topk, "needs a page table"),
    "draft trees": (_tree, "--speculative-eagle-topk 1"),
    "narrow values": (lambda: _values(448), "values as wide as the keys"),
    "other cache rows": (lambda: _values(512), "reads rows of 584 bytes"),
    "state by request": (
        lambda: compressor._rings(4, NONE, NONE, 256, 8, by_row=True),
        "by page, not by request",
    ),
    "online merging": (lambda: _merge(is_online=True), "keeps whole windows"),
    "merging in place": (lambda: _merge(out=NONE), "returns new tensors"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_supplied_is_named(what: str) -> None:
    """A call with an option that no kernel here has raises before anything is computed."""
    call, message = REFUSED[what]
    with pytest.raises(NotImplementedError, match=message):
        call()


@pytest.mark.parametrize("option", ["use_fp4", "bf16_store"])
def test_only_fp8_entries_are_stored(option: str) -> None:
    """The V4 compressor refuses to store entries in a format that nothing here reads."""
    import inspect

    names = inspect.signature(compressor._norm_rope_store).parameters
    needed = {n for n, p in names.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    with pytest.raises(NotImplementedError, match="stores fp8 entries"):
        compressor._norm_rope_store(**dict.fromkeys(needed, NONE), **{option: True})
