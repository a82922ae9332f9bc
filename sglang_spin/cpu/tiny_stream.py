"""What the tiny models share: the residual stream's layout, embeddings, output rows, experts.

Dimension 0 of the stream is the same for every token and the next CODE dimensions carry the token's
routing code; no layer writes to these, so both stay readable at any depth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

HIDDEN, VOCAB = 256, 1024
EXPERTS = 4
TOPICS = 32  # runs of consecutive ids
CODE = EXPERTS  # stream dimensions that carry the token's routing code
SUCCESSORS = 12  # tokens that each token favours next; the context picks among them


def normal(gen: Generator, *shape: int, scale: float = 1.0) -> Tensor:
    """Gaussian noise of that standard deviation."""
    import torch

    return torch.randn(*shape, generator=gen) * scale


def gain(gen: Generator, width: int) -> Tensor:
    """Norm weight near one, uneven so that a forgotten weight shows."""
    return 1 + normal(gen, width, scale=0.1)


def embedding(gen: Generator) -> Tensor:
    """[VOCAB, HIDDEN]: dimension 0 shared by all, CODE routing dimensions, then topic + token."""
    import torch

    topic = normal(gen, TOPICS, HIDDEN).repeat_interleave(VOCAB // TOPICS, 0)
    table = 0.8 * topic + 0.6 * normal(gen, VOCAB, HIDDEN)
    table[:, 0] = 8.0
    codes = torch.randint(0, EXPERTS, (VOCAB,), generator=gen)
    partner = torch.randint(1, EXPERTS, (VOCAB,), generator=gen)
    table[:, 1 : 1 + CODE] = 0.0
    rows = torch.arange(VOCAB)
    table[rows, 1 + codes] = 4.0
    table[rows, 1 + (codes + partner) % EXPERTS] = 3.0
    return table


def successors(gen: Generator, table: Tensor) -> Tensor:
    """[VOCAB, HIDDEN] part of the output rows that favours successors of the last token.

    table: the embedding.
    """
    import torch

    own = table.clone()
    own[:, : 1 + CODE] = 0.0
    rows = -0.05 * own
    for _ in range(SUCCESSORS):
        rows += 0.12 * own[torch.randperm(VOCAB, generator=gen)]
    return rows


def to_stream(gen: Generator, fan_in: int, strength: float) -> Tensor:
    """[HIDDEN, fan_in] output projection that leaves the shared and the code dimensions alone."""
    weight = normal(gen, HIDDEN, fan_in, scale=strength / math.sqrt(fan_in))
    weight[: 1 + CODE] = 0.0
    return weight


def router(gen: Generator) -> Tensor:
    """[EXPERTS, HIDDEN]: reads mostly the routing code, each expert another dimension of it."""
    import torch

    weight = normal(gen, EXPERTS, HIDDEN, scale=0.1 / math.sqrt(HIDDEN))
    weight[:, 1 : 1 + EXPERTS] += torch.eye(EXPERTS)[torch.randperm(EXPERTS, generator=gen)]
    return weight


def gated_mlp(gen: Generator, width: int, strength: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gate and up [width, HIDDEN] and down [HIDDEN, width] of one expert."""
    inward = 1 / math.sqrt(HIDDEN)
    return (
        normal(gen, width, HIDDEN, scale=inward),
        normal(gen, width, HIDDEN, scale=inward),
        to_stream(gen, width, strength),
    )


def aimed_at(head: Tensor, width: int) -> Tensor:
    """[HIDDEN, width] that writes along every VOCAB / width-th output row."""
    aim = head[:: VOCAB // width].T.contiguous()
    aim[: 1 + CODE] = 0.0
    return aim
