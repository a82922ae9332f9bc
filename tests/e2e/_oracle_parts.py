"""What both oracles are made of besides transformers; nothing of SGLang or of our kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

FP8_MAX = 448.0


def exact(x: Tensor) -> Tensor:
    """No rounding."""
    return x


@cache
def walsh_hadamard(size: int) -> Tensor:
    """The indexer's rotation [size, size], orthogonal, by its definition (-1)^popcount(i & j)."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return torch.tensor(signs) * size**-0.5


def load(kind: Any, folder: str) -> tuple[Any, np.ndarray]:
    """A model of that transformers class in float32, and the weights that did not fit by name."""
    model, loading = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    model.eval()
    problems = ("missing_keys", "unexpected_keys", "mismatched_keys")
    unmatched = [str(key) for each in problems for key in loading[each]]
    return model, np.array(unmatched, dtype=str)
