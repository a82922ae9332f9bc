"""The work of one run: conversations over cached contexts, or a recorded trace."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from harness.spec_arrival import Arrival, Closed, TraceArrival
from harness.spec_content import Content, FileIds, RandomIds
from harness.spec_types import Natural, Positive, Rate, Strict


class ContextWork(Strict):
    """Conversations that continue cached contexts; lengths in tokens.

    sharing "shared": all continue one context; "distinct": each its own; "groups": `groups` of
    them, conversation i belongs to group i modulo groups.
    requests: conversations of one run, `concurrency` of them by default. With open arrivals
    `concurrency` is only the width of the warm-up and what the KV need is counted for.
    turns: requests of a conversation. Each brings new_tokens; before the next one the recorded
    answer, recorded_tokens long, is put in place of what the server said, so that every arm sees
    the same prompts. think_s passes between an answer and the next turn.
    prime_output_tokens: generated on the context while priming, so that it has a decode history.
    prime "once": an arm's first run flushes and primes, later runs continue the same context with
    other suffixes; every run verifies what is cached.
    """

    kind: Literal["context"] = "context"
    cached_tokens: Positive
    new_tokens: Positive
    output_tokens: Annotated[int, Field(ge=2)]
    concurrency: Positive
    sharing: Literal["shared", "distinct", "groups"]
    groups: Positive | None = None
    requests: Positive | None = None
    turns: Positive = 1
    recorded_tokens: Natural = 0
    think_s: Annotated[float, Field(ge=0)] = 0
    prime_output_tokens: Positive = 1
    prime: Literal["each-run", "once"] = "each-run"
    content: Content = RandomIds()
    arrival: Arrival = Closed()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.requests is not None and self.requests < self.concurrency:
            raise ValueError(f"requests ({self.requests}) is below concurrency, lower concurrency")
        if (self.groups is not None) != (self.sharing == "groups"):
            raise ValueError("`sharing: groups` and `groups: N` belong together, give both or none")
        if self.groups is not None and self.groups > self.request_count:
            raise ValueError(f"groups ({self.groups}) is above the number of requests")
        if (self.turns > 1) != (self.recorded_tokens > 0):
            raise ValueError("turns above 1 and recorded_tokens belong together")
        return self

    @property
    def request_count(self) -> int:
        """Conversations of one run."""
        return self.requests or self.concurrency

    @property
    def lanes(self) -> int:
        """Number of different cached contexts."""
        if self.sharing == "groups":
            assert self.groups is not None
            return self.groups
        return 1 if self.sharing == "shared" else self.request_count

    def sentence(self) -> str:
        """The work in words."""
        turns = f" in {self.turns} turns" if self.turns > 1 else ""
        return (
            f"{self.request_count:,} conversations{turns}, {self.concurrency:,} in flight: "
            f"{self.cached_tokens:,} cached + {self.new_tokens:,} new tokens, "
            f"{self.output_tokens:,} out; contexts: {self.lanes:,} ({self.sharing}); "
            f"content: {self.content.kind}; arrival: {self.arrival.kind}"
        )

    def tail_tokens(self, turn: int) -> int:
        """Tokens between the context and the end of the prompt of `turn`, counted from 0."""
        return (turn + 1) * self.new_tokens + turn * self.recorded_tokens

    def prompt_tokens(self, turn: int = 0) -> int:
        """Length of a prompt of `turn`."""
        return self.cached_tokens + self.tail_tokens(turn)

    def resident_tokens(self) -> int:
        """KV entries needed while all streams of one wave are at their end."""
        last = self.tail_tokens(self.turns - 1) + self.output_tokens
        # what the server said before is no part of the next prompt, but stays in its cache
        said = (self.turns - 1) * self.output_tokens
        return self.lanes * (self.cached_tokens + self.prime_output_tokens) + self.concurrency * (
            last + said
        )


class TraceWork(Strict):
    """Replay of a Mooncake trace: JSON lines of timestamp (ms), input_length, output_length, and
    hash_ids, one for each `block_tokens` tokens of the prompt.

    Requests with the same leading hash_ids have the same leading tokens, nothing else is shared.
    limit: only so many requests from the beginning. length_scale shortens every length.
    """

    kind: Literal["trace"]
    path: str
    concurrency: Positive
    block_tokens: Positive = 512
    limit: Positive | None = None
    length_scale: Annotated[Rate, Field(le=1)] = 1.0
    content: Content = RandomIds()
    arrival: TraceArrival = Closed()

    def sentence(self) -> str:
        """The work in words."""
        return (
            f"trace {self.path}, {self.concurrency:,} in flight at most; content: "
            f"{self.content.kind}; arrival: {self.arrival.kind}"
        )

    @model_validator(mode="after")
    def _generated_content(self) -> Self:
        if isinstance(self.content, FileIds):
            raise ValueError("content `file` gives whole prompts, a trace needs blocks")
        return self


def _kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return str(value.get("kind", "context"))
    kind: str | None = getattr(value, "kind", None)
    return kind


Workload = Annotated[
    Annotated[ContextWork, Tag("context")] | Annotated[TraceWork, Tag("trace")],
    Discriminator(_kind),
]
