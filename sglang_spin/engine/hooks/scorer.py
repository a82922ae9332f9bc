"""The decode scorer: SPIN's own in the engine's place, if the option asks for it."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target


def _around_resolve(original: Any) -> Any:
    fused = runtimes.current().fused
    return fused if fused is not None and fused.expecting else original()


HOOKS = (
    Hook(
        Target(
            name="sglang.srt.layers.attention.dsa.utils:resolve_fp8_paged_mqa_logits_fn",
            expect="4f1a7fbb66911bc3",
            why="asked once per layer for the function that scores a page table",
            drop_when="the paged scorer is an option that plugins can register",
        ),
        How.AROUND,
        _around_resolve,
        Proof.DECODE,
    ),
)
