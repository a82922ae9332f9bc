"""Which tokens the compressors merge in a forward, and where their running state lies.

A compressor of ratio 4 merges the last eight tokens at every fourth one (its windows overlap), one
of ratio 128 the last 128 at every 128th. What a window needs of earlier forwards waits in a ring:
per request for ratio 128, per sliding-window page for ratio 4.

Plans are rows of four int32: [length at the merge, token row | ring entries << 16, ring page of the
window's first half, of its second half]; in a decode plan the second word is the ring slot to
write. Write plans are rows of two: [token row, ring slot].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

OVERLAPPING = 4  # the ratio whose windows overlap


class Rings(NamedTuple):
    """Where state waits. ratio: tokens a merge stands for; size: slots of a ring.

    req_to_token: int [request rows, positions] -> token slot; to_window: int [token slots] ->
    sliding-window slot; window_page: slots of a sliding-window page.
    """

    ratio: int
    size: int
    req_to_token: Tensor
    to_window: Tensor
    window_page: int

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """The ring slot of each position (int64 [n]) of request rows (int64 [n])."""
        if self.ratio != OVERLAPPING:
            return rows * self.size + positions % self.size
        window = self.to_window[self.req_to_token[rows, positions].long()].long()
        return window // self.window_page * self.size + window % self.size

    def pages(self, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The ring pages of a window's halves when it ends at `lengths` tokens."""
        last = (lengths - 1).clamp(min=0)
        before = (last - self.ratio).clamp(min=0)
        return self.slots(rows, before) // self.ratio, self.slots(rows, last) // self.ratio


def decode_plan(rings: Rings, rows: Tensor, lengths: Tensor) -> Tensor:
    """One token a request. rows, lengths: int64 [n], the new token included. int32 [n, 4]."""
    first, second = rings.pages(rows, lengths)
    slots = rings.slots(rows, (lengths - 1).clamp(min=0))
    return torch.stack([lengths, slots, first, second], -1).int()


def prefill_plans(
    rings: Rings, rows: Tensor, lengths: Tensor, extended: Tensor
) -> tuple[Tensor, Tensor]:
    """Many tokens a request, request after request.

    rows, lengths, extended: int64 [n], extended being how many of each request's last tokens are
    new. Returns the merges int32 [m, 4] and the writes int32 [w, 2].
    """
    ratio = rings.ratio
    overlapping = ratio == OVERLAPPING
    request = torch.arange(len(rows)).repeat_interleave(extended)
    token = torch.arange(len(request))
    nth = token - (extended.cumsum(0) - extended)[request]
    position = (lengths - extended)[request] + nth
    row, length = rows[request], lengths[request]

    window = 2 * ratio if overlapping else ratio
    merging = (position + 1) % ratio == 0
    from_ring = (window - nth - 1).clamp(min=0)
    first, second = rings.pages(row[merging], position[merging] + 1)
    packed = token | from_ring << 16
    merges = torch.stack([position[merging] + 1, packed[merging], first, second], -1)

    # speculation widens the ring, so that rejected drafts do not overwrite what is still needed
    pad = rings.size - window + 2 if rings.size > window else 0
    begin = length // ratio * ratio - (ratio if overlapping else 0)
    kept = position >= torch.minimum(begin, length - pad)
    if overlapping:
        kept |= position % rings.window_page >= rings.window_page - ratio
    writes = torch.stack([token[kept], rings.slots(row[kept], position[kept])], -1)
    return merges.int(), writes.int()
