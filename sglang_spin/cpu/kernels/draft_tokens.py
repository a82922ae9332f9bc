"""Draft tokens of speculative decoding: their order, their acceptance, and their cache slots.

Plain loops: a batch holds tens of draft tokens, and a step of the model dwarfs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def write_chain(
    seq_lens: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
) -> None:
    """Describe N drafts a request, each the child of the one before it.

    seq_lens: int [n], tokens before the drafts. Written: mask, bool [>= n * N * N], which draft
    sees which; positions, int64 [n * N]; index, int64 [n, N], the drafts' rows in the batch;
    next_token and next_sibling, int64 [n, N], a draft's first child and next sibling or -1.
    """
    requests, drafts = index.shape
    order = torch.arange(drafts)
    seen = order <= order[:, None]
    mask[: requests * drafts * drafts] = seen.expand(requests, drafts, drafts).reshape(-1)
    positions.copy_((seq_lens[:, None] + order).flatten())
    index.copy_(torch.arange(requests * drafts).view(requests, drafts))
    next_token.copy_(torch.where(order < drafts - 1, order + 1, -1))
    next_sibling.fill_(-1)


def read_mask(
    mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
) -> None:
    """The same fields for any tree, from its mask: bool [n * N * N], draft i sees ancestor j."""
    requests, drafts = index.shape
    order = torch.arange(drafts)
    ancestors = mask.view(requests, drafts, drafts) & (order < order[:, None])
    positions.copy_((ancestors.sum(-1) + seq_lens[:, None]).flatten())
    index.copy_(torch.arange(requests * drafts).view(requests, drafts))
    parents = torch.where(ancestors.any(-1), (ancestors * order).amax(-1), -1).tolist()
    for request, parent in enumerate(parents):
        eldest: dict[int, int] = {}
        for draft in reversed(range(drafts)):
            next_token[request, draft] = eldest.get(draft, -1)
            next_sibling[request, draft] = -1
            if parent[draft] >= 0:
                next_sibling[request, draft] = eldest.get(parent[draft], -1)
                eldest[parent[draft]] = draft


def accept_greedily(
    predicts: Tensor,
    accept_index: Tensor,
    accepted: Tensor,
    candidates: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    target: Tensor,
) -> None:
    """Walk each tree from its root while a child is what the target model predicted.

    candidates, index, next_token, next_sibling: int [n, N]; target: int [n, N], the target's best
    token after each draft. Written: accept_index [n, depth], rows of the accepted drafts, the root
    first; accepted [n], their number without the root; predicts [n * N] at the accepted rows.
    """
    best, tokens = target.flatten().tolist(), candidates.tolist()
    rows, children, siblings = index.tolist(), next_token.tolist(), next_sibling.tolist()
    for request in range(candidates.shape[0]):
        row, draft, count = rows[request][0], 0, 0
        accept_index[request, 0] = row
        while count + 1 < accept_index.shape[1]:
            draft = children[request][draft]
            while draft >= 0 and tokens[request][draft] != best[row]:
                draft = siblings[request][draft]
            if draft < 0:
                break
            predicts[row] = best[row]
            row, count = rows[request][draft], count + 1
            accept_index[request, count] = row
        predicts[row] = best[row]
        accepted[request] = count


def read_slots(rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, out: Tensor) -> None:
    """Pack table[row, start:end] of every request into `out`, one after the other."""
    at = 0
    for row, start, end in _spans(rows, starts, ends):
        out[at : at + end - start] = table[row, start:end].to(out.dtype)
        at += end - start


def write_slots(rows: Tensor, table: Tensor, starts: Tensor, ends: Tensor, slots: Tensor) -> None:
    """The inverse of read_slots."""
    at = 0
    for row, start, end in _spans(rows, starts, ends):
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def _spans(rows: Tensor, starts: Tensor, ends: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
