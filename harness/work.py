"""The requests of one run, worked out from the spec before anything is sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.arrivals import Work, due_seconds
from harness.spec import Spec
from harness.spec_workload import ContextWork
from harness.trace import most_cached, read_trace


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent.

    index: place in the run's records. lane: the cached context it continues. chain: its
    conversation, turn: its place in that. at_most_cached: tokens that the cache can hold of a
    replayed prompt; None where the cached tokens are known exactly.
    """

    index: int
    lane: int
    chain: int
    turn: int
    prompt_tokens: int
    output_tokens: int
    at_most_cached: int | None = None


def asks_of(spec: Spec) -> tuple[Ask, ...]:
    """All requests of a run, conversation by conversation. Raises ConfigError for a bad trace."""
    return _asks(spec.workload)


@lru_cache(maxsize=8)
def _asks(work: Work) -> tuple[Ask, ...]:
    if isinstance(work, ContextWork):
        return tuple(
            Ask(
                index=chain * work.turns + turn,
                lane=chain % work.lanes,
                chain=chain,
                turn=turn,
                prompt_tokens=work.prompt_tokens(turn),
                output_tokens=work.output_tokens,
            )
            for chain in range(work.request_count)
            for turn in range(work.turns)
        )
    bounds = most_cached(work)
    return tuple(
        Ask(index, index, index, 0, request.input_tokens, request.output_tokens, bound)
        for index, (request, bound) in enumerate(zip(read_trace(work), bounds, strict=True))
    )


def chains_of(asks: Sequence[Ask]) -> list[list[int]]:
    """Indices of each conversation's requests, in order."""
    chains: dict[int, list[int]] = {}
    for ask in asks:
        chains.setdefault(ask.chain, []).append(ask.index)
    return list(chains.values())


def start_times(spec: Spec, pair: int) -> list[float] | None:
    """When each conversation starts, seconds after the load began; None for a closed loop."""
    chains = len(chains_of(asks_of(spec)))
    return due_seconds(spec.workload, chains, [spec.seed, pair])


def longest_request(spec: Spec) -> int:
    """Tokens of the longest request at its end."""
    return max(ask.prompt_tokens + ask.output_tokens for ask in asks_of(spec))


def resident_tokens(spec: Spec) -> int | None:
    """KV entries that must be held at once; None for a trace, whose contexts may come and go."""
    work = spec.workload
    return work.resident_tokens() if isinstance(work, ContextWork) else None
