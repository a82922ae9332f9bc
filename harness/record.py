"""What is kept of one request: raw times and counts, no derived figure."""

from array import array
from dataclasses import dataclass, field
from typing import Literal

ItlBasis = Literal["usage", "chunk"]


def _int64() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class RequestRecord:
    """One request as the client saw it. lane: the cached context it continues; turn: its place in
    the conversation. All times are perf_counter_ns of this process.

    0: not reached. scheduled: when it was due; it was queued from then until sent, when a stream
    took it up; uploaded: when the last piece of its body was handed to the socket.
    chunk_t_ns[i], chunk_tokens[i]: when the i-th token-bearing chunk was received, and how many
    tokens it brought. itl_basis says where that number came from: the server's per-chunk usage, or,
    without it, the assumption of one token per chunk.
    cached_tokens None: the server did not report it, which is not the same as 0.
    """

    index: int
    lane: int = 0
    turn: int = 0
    scheduled_ns: int = 0
    sent_ns: int = 0
    uploaded_ns: int = 0
    headers_ns: int = 0
    first_byte_ns: int = 0
    done_ns: int = 0
    chunk_t_ns: "array[int]" = field(default_factory=_int64)
    chunk_tokens: "array[int]" = field(default_factory=_int64)
    output_ids: "array[int]" = field(default_factory=_int64)
    text: list[str] = field(default_factory=list)
    itl_basis: ItlBasis | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    saw_done: bool = False
    error: str | None = None

    @property
    def streamed_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(self.chunk_tokens)
