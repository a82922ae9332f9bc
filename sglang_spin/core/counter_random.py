"""Random numbers out of a counter alone, so that every rank and every replay agrees."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def mix(value: Tensor) -> Tensor:
    """Scramble uint32 values held in int64 (C. Wellons' lowbias32). Same shape."""
    value = value ^ (value >> 16)
    value = (value * 0x7FEB352D) & _MASK
    value = value ^ (value >> 15)
    value = (value * 0x846CA68B) & _MASK
    return value ^ (value >> 16)


def block_noise(seed: int, generation: Tensor, step: Tensor, layers: int, blocks: int) -> Tensor:
    """One uint32 (in int64) per layer, row and block.

    generation, step: integer [rows]. Returns int64 [layers, rows, blocks], values 0..2**32 - 1.
    """
    device = generation.device
    row = mix(mix(generation.long() & _MASK ^ seed) ^ (step.long() & _MASK))
    layer = mix(torch.arange(layers, device=device) + 1)
    block = torch.arange(blocks, device=device)
    return mix(mix(row[None, :, None] ^ layer[:, None, None]) ^ block)
