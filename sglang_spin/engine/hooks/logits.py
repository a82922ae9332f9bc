"""DSAIndexerMetadata: where a layer's logits come out, in a patched SGLang.

Elsewhere the compact metadata, which is a subclass, observes them in its own topk_transform.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target, is_patched


def _before_topk(metadata: Any, logits: Any, *_args: Any, **_kw: Any) -> None:
    observe = getattr(metadata, "observe_scores", None)
    if observe is not None:
        observe(logits)


HOOKS = (
    Hook(
        Target(
            name="sglang.srt.layers.attention.dsa.dsa_indexer_metadata:"
            "DSAIndexerMetadata.topk_transform",
            expect="eb3428e33dc465dc",
            why="is handed a layer's logits with the metadata that they were scored with",
            drop_when="the metadata has a score callback",
        ),
        How.BEFORE,
        _before_topk,
        Proof.DECODE,
    ),
)


@cache
def by_callback() -> bool:
    """Whether this SGLang calls back with the logits."""
    return is_patched(HOOKS[0].target.name)
