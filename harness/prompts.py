"""Prompts as token ids, and the request bodies, encoded once before anything is timed.

Each prompt has its own random stream, keyed by (seed, role, pair, index): warm-up and probes
never share a token page with a measured prompt, and each pair brings new text.
"""

from enum import IntEnum

import numpy as np

from harness.idsource import TokenIds, draw_ids, line_ids
from harness.spec import Spec
from harness.spec_content import Content, FileIds
from harness.spec_workload import ContextWork, TraceWork
from harness.trace import block_length, read_trace
from harness.wire import COMPLETIONS, Wire
from harness.work import Ask, asks_of


class Role(IntEnum):
    """Which part of the work a prompt serves; part of its random key."""

    CONTEXT = 1
    SUFFIX = 2
    WARMUP = 3
    PROBE = 4
    BLOCK = 5


def token_ids(
    content: Content, length: int, *, seed: int, role: Role, pair: int, index: int
) -> TokenIds:
    """Draw `length` ids [length] int64, the same for the same key."""
    return draw_ids(content, length, np.random.default_rng([seed, role, pair, index]))


def context_ids(spec: Spec, pair: int, lane: int) -> TokenIds:
    """The context that is primed into the cache; one for all pairs if it is primed once."""
    work = context_work(spec)
    if isinstance(work.content, FileIds):
        return line_ids(work.content, lane, work.cached_tokens)
    pair = 0 if work.prime == "once" else pair
    return token_ids(
        work.content, work.cached_tokens, seed=spec.seed, role=Role.CONTEXT, pair=pair, index=lane
    )


def context_work(spec: Spec) -> ContextWork:
    """The workload of a campaign that primes contexts."""
    assert isinstance(spec.workload, ContextWork)
    return spec.workload


def tail_ids(spec: Spec, pair: int, chain: int) -> TokenIds:
    """What a conversation adds to its context: new tokens and recorded answers, turn by turn."""
    work = context_work(spec)
    length = work.tail_tokens(work.turns - 1)
    if isinstance(work.content, FileIds):
        return line_ids(work.content, chain, work.cached_tokens + length)[work.cached_tokens :]
    return token_ids(work.content, length, seed=spec.seed, role=Role.SUFFIX, pair=pair, index=chain)


def recorded_answer(spec: Spec, pair: int, ask: Ask) -> TokenIds:
    """The answer that later turns have in place of what the server said to `ask`."""
    work = context_work(spec)
    start = work.tail_tokens(ask.turn)
    return tail_ids(spec, pair, ask.chain)[start : start + work.recorded_tokens]


def request_ids(spec: Spec, pair: int, index: int) -> TokenIds:
    """A measured prompt: its lane's context and a suffix of its own. [prompt_tokens]"""
    ask = asks_of(spec)[index]
    work = spec.workload
    if isinstance(work, TraceWork):
        return _trace_ids(spec, work, pair, ask)
    tail = tail_ids(spec, pair, ask.chain)[: work.tail_tokens(ask.turn)]
    return np.concatenate([context_ids(spec, pair, ask.lane), tail])


def _trace_ids(spec: Spec, work: TraceWork, pair: int, ask: Ask) -> TokenIds:
    size = block_length(work)
    needed = -(-ask.prompt_tokens // size)
    blocks = [
        token_ids(work.content, size, seed=spec.seed, role=Role.BLOCK, pair=pair, index=block)
        for block in read_trace(work)[ask.index].hash_ids[:needed]
    ]
    return np.concatenate(blocks)[: ask.prompt_tokens]


def load_bodies(spec: Spec, model: str, pair: int, wire: Wire = COMPLETIONS) -> list[bytes]:
    """Bodies of one run, in request order."""
    return [
        wire.body(model, request_ids(spec, pair, ask.index), ask.output_tokens)
        for ask in asks_of(spec)
    ]
