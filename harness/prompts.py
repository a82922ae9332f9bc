"""Prompts as token ids, and the request bodies, encoded once before anything is timed.

Each prompt has its own random stream, keyed by (seed, role, pair, index): warm-up and probes
never share a token page with a measured prompt, and each pair brings new text.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from harness.spec import Content, Spec, TopicIds
from harness.wire import COMPLETIONS, Wire
from harness.wire import completion_body as completion_body

TokenIds = NDArray[np.int64]


class Role(IntEnum):
    """Which part of the work a prompt serves; part of its random key."""

    CONTEXT = 1
    SUFFIX = 2
    WARMUP = 3
    PROBE = 4


def token_ids(
    content: Content, length: int, *, seed: int, role: Role, pair: int, index: int
) -> TokenIds:
    """Draw `length` ids [length] int64, the same for the same key."""
    generator = np.random.default_rng([seed, role, pair, index])
    if isinstance(content, TopicIds):
        return _topic_ids(content, length, generator)
    return generator.integers(content.low, content.high, size=length, dtype=np.int64)


def _topic_ids(content: TopicIds, length: int, generator: np.random.Generator) -> TokenIds:
    topic = np.empty(length, dtype=np.int64)
    start = 0
    while start < length:
        end = start + int(generator.integers(content.segment_min, content.segment_max + 1))
        topic[start:end] = generator.integers(content.topics)
        start = end
    within = generator.integers(content.ids_per_topic, size=length)
    return content.low + topic * content.ids_per_topic + within


def context_ids(spec: Spec, pair: int, lane: int) -> TokenIds:
    """The context that is primed into the cache; one for all pairs if it is primed once."""
    length = spec.workload.cached_tokens
    pair = 0 if spec.workload.prime == "once" else pair
    return token_ids(
        spec.workload.content, length, seed=spec.seed, role=Role.CONTEXT, pair=pair, index=lane
    )


def request_ids(spec: Spec, pair: int, index: int) -> TokenIds:
    """A measured prompt: its lane's context and a suffix of its own. [prompt_tokens]"""
    suffix = token_ids(
        spec.workload.content,
        spec.workload.new_tokens,
        seed=spec.seed,
        role=Role.SUFFIX,
        pair=pair,
        index=index,
    )
    return np.concatenate([context_ids(spec, pair, lane_of(spec, index)), suffix])


def lane_of(spec: Spec, index: int) -> int:
    """Which cached context request `index` continues."""
    return index % spec.workload.lanes


def load_bodies(spec: Spec, model: str, pair: int, wire: Wire = COMPLETIONS) -> list[bytes]:
    """Bodies of one run, in request order."""
    workload = spec.workload
    return [
        wire.body(model, request_ids(spec, pair, index), workload.output_tokens)
        for index in range(workload.request_count)
    ]
