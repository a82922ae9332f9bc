"""RMS norm and rotary embedding as V4 has them: the last 64 dimensions, in interleaved pairs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from sglang_spin.cpu.kernels.rope import rotate_

if TYPE_CHECKING:
    from torch import Tensor


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., dim] over its root mean square, in fp32, times weight [dim] where there is one."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide if weight is None else wide * weight.float()


def rotate_tail_(x: Tensor, freqs: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last dimensions of each head in place and return x.

    x [tokens, dim] or [tokens, heads, dim]; freqs complex64 [positions, pairs], whose pairs say how
    many dimensions turn; positions int [tokens].
    """
    table = _table(freqs, inverse)
    rotate_(x[..., -table.shape[1] :], table, positions, neox=False)
    return x


def normed_rotated(
    x: Tensor, weight: Tensor | None, eps: float, freqs: Tensor, positions: Tensor
) -> Tensor:
    """RMS norm, then rotation. Returns a new fp32 tensor of x's shape."""
    return rotate_tail_(normed(x, weight, eps), freqs, positions)


@cache  # a layer's table never changes, and there are a handful
def _table(freqs: Tensor, inverse: bool) -> Tensor:
    """f32 [positions, 2 * pairs]: cosines, then sines."""
    sines = -freqs.imag if inverse else freqs.imag
    return torch.cat([freqs.real, sines], -1).float().contiguous()
