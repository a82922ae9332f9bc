"""Rotary embedding with YaRN: upstream's torch version repeats cosines along a wrong dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

TARGETS: tuple[Target, ...] = (
    Target(
        name="sglang.srt.layers.rotary_embedding.rope_variant:"
        "DeepseekScalingRotaryEmbedding.forward_native",
        expect="b8dea4cae488e261",
        why="cos.repeat(1, 1, 2) on [tokens, rotary / 2] adds a dimension: wrong for neox style",
        drop_when="upstream repeats along the last dimension",
    ),
)


def install() -> None:
    """Replace the torch version, under both names that the CPU dispatch may pick."""
    from sglang.srt.layers.rotary_embedding.rope_variant import DeepseekScalingRotaryEmbedding

    DeepseekScalingRotaryEmbedding.forward_native = _rotate
    DeepseekScalingRotaryEmbedding.forward_cpu = _rotate


def _rotate(
    embedding: Any, positions: Tensor, query: Tensor, key: Tensor, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    from sglang_spin.cpu.kernels.rope import rotate_

    # in place, as the CUDA kernel does it: callers take the views they passed for rotated
    at = positions if offsets is None else positions + offsets
    for x in (query, key):
        rotate_(x, embedding.cos_sin_cache, at, embedding.is_neox_style)
    return query, key
