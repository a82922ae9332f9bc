"""Token-id prompts with structure: runs from one topic, as tiny-dsa's vocabulary has them."""

from __future__ import annotations

import random

TOPICS, WORDS = 32, 32


def prompt(length: int, seed: int) -> list[int]:
    """`length` token ids in runs of 20 to 200 from one topic each. Ids below 3 are special."""
    rng = random.Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        topic = rng.randrange(TOPICS)
        run = rng.randint(20, 200)
        ids += [max(3, topic * WORDS + rng.randrange(WORDS)) for _ in range(run)]
    return ids[:length]
