"""The scorer in torch, fp32, on any device: the formula, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import block_maxima
from sglang_spin.kernels.paged_logits.layout import DIM, FP8, GROUP

if TYPE_CHECKING:
    from sglang_spin.kernels.paged_logits.operands import Operands

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def score(args: Operands) -> None:
    """Write the logits of each row's first `length` entries, and the block maxima where wanted."""
    for row, length in enumerate(args.lengths.tolist()):
        length = min(length, args.capacity)
        if length > 0:
            _score_row(args, row, length)


def _score_row(args: Operands, row: int, length: int) -> None:
    blocks = -(-length // BLOCK)
    pages = args.page_table[row // args.next_n, :blocks].long()
    key, key_scale = _keys(args, pages)
    product = (_query(args, row) @ key.T).relu()  # [heads, entries]
    logits = (args.weights[row, :, None] * product).sum(0) * key_scale
    args.logits[row, :length] = logits[:length]
    if args.maxima is not None:
        count = torch.tensor([length], device=logits.device)
        _put_maxima(args, args.maxima, row, block_maxima(logits[None], blocks, count)[0])


def _put_maxima(args: Operands, maxima: Tensor, row: int, values: Tensor) -> None:
    blocks = values.shape[0]
    if args.placement is None:
        maxima[row, :blocks] = values
        return
    rows, columns = args.placement
    if rows[row] != 0:
        maxima[rows[row], columns[row // args.next_n, :blocks].long()] = values


def _keys(args: Operands, pages: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 keys [entries, 128] and scales [entries] of whole pages."""
    page = args.cache[pages]
    split = args.format.scales_at
    key, scale = page[:, :split], page[:, split:].contiguous()
    if args.format is FP8:
        return key.contiguous().view(args.q.dtype).view(-1, DIM).float(), scale.view(
            torch.float32
        ).view(-1)
    keys = decode_fp4(key.reshape(-1, DIM // 2), scale.view(-1, DIM // GROUP))
    return keys, keys.new_ones(keys.shape[0])


def _query(args: Operands, row: int) -> Tensor:
    if args.q_scales is None:
        return args.q[row].float()
    return decode_fp4(args.q[row].view(torch.uint8), args.q_scales[row])


def decode_fp4(packed: Tensor, scales: Tensor) -> Tensor:
    """packed uint8 [n, 64], low nibble first; scales ue8m0 uint8 [n, 4]. Returns fp32 [n, 128]."""
    code = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    magnitude = torch.tensor(_E2M1, device=packed.device)[(code & 7).long()]
    value = torch.where(code > 7, -magnitude, magnitude)
    # ue8m0 255 is NaN; 0 is 2**-127, a subnormal fp32
    scale = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - 127)
    scale = scale.masked_fill(scales == 255, float("nan"))
    return value * scale.repeat_interleave(GROUP, -1)
