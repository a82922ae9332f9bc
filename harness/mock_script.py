"""What the mock server is told to do, and what it remembers while it does it."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FAULTS = (
    "none", "early-stop", "short", "in-band-error", "no-done", "eof", "abort", "stall", "drop",
    "buffered", "restart", "http-500", "http-503-once", "die", "garbage",
)  # fmt: skip
CHOICES = {
    "fault": FAULTS,
    "dialect": ("sglang", "vllm"),
    "usage": ("continuous", "final", "none"),
    "text_field": ("content", "reasoning_content", "reasoning"),
    "line_end": ("lf", "crlf", "cr"),
    "flush": ("works", "lies", "refuses"),
    "metrics": ("on", "off", "hang", "garbage", "error"),
}


@dataclass(frozen=True)
class MockScript:
    """How the mock behaves; every field is an option of the command. Times in ms.

    dialect: whose endpoints, metric names and usage it imitates.

    The reply. chunk_tokens: tokens of each chunk, repeated in turn, as in 1,2,4; a 0 is a chunk
    without tokens. text_field: where chat replies put their text. pad_bytes: ballast in every
    event. split_bytes: each event is written in pieces of this size. comments: a comment line
    before every event. cold_requests, cold_factor: the first so many requests are slower.

    Usage. cached: "radix" simulates a paged prefix cache, "absent" reports nothing, a number is
    reported as it is. cached_zero_absent: 0 is not reported, as some vLLM versions do.
    cumulative: /generate repeats its whole output in every event.

    Faults. fault hits only requests for at least fault_min_tokens tokens, so that warm-up and
    priming can pass; every other request with fault_every 2. upload_kib_s: the body is read this
    slowly. refuse: print this and exit 1 at once. flush "lies": says done and keeps the cache.

    Counters, touched by requests for at least fault_min_tokens: retract, evict (tokens), queued,
    miscount (output tokens that /metrics adds); metrics_late_ms: series appear this late;
    metrics_reset_after: all counters fall to 0 after so many requests.

    SPIN. spin_target negative: no spin block.
    """

    dialect: str = "sglang"
    ttft_ms: float = 2.0
    itl_ms: float = 2.0
    chunk_tokens: str = "1"
    empty_first_chunk: int = 0
    text_field: str = "content"
    pad_bytes: int = 0
    split_bytes: int = 0
    line_end: str = "lf"
    comments: int = 0
    cold_requests: int = 0
    cold_factor: float = 1.0
    usage: str = "continuous"
    token_ids: int = 1
    cached: str = "radix"
    cached_zero_absent: int = 0
    cumulative: int = 0
    fault: str = "none"
    fault_min_tokens: int = 8
    fault_every: int = 1
    upload_kib_s: float = 0.0
    flush: str = "works"
    diverge_at: int = 1 << 30
    page_size: int = 64
    capacity: int = 1_000_000
    max_prompt: int = 1_000_000
    metrics: str = "on"
    metrics_late_ms: float = 0.0
    metrics_reset_after: int = 0
    retract: int = 0
    evict: int = 0
    queued: int = 0
    miscount: int = 0
    spin_target: float = -1.0
    spin_realised: float = -1.0
    spin_policy: str = "spin"
    spin_engaged: int = 1
    layers: int = 4
    start_delay_ms: float = 0.0
    refuse: str = ""

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Tokens of the chunks, in turn. Raises ValueError for a pattern that never ends."""
        sizes = tuple(int(size) for size in self.chunk_tokens.split(","))
        if min(sizes) < 0 or max(sizes) == 0:
            raise ValueError(f"chunk_tokens {self.chunk_tokens!r}: give counts, not all of them 0")
        return sizes


@dataclass
class MockState:
    """What the mock remembers. Token and request counts are of finished replies."""

    script: MockScript
    pages: set[int] = field(default_factory=set)
    running: int = 0
    waiting: int = 0
    served: int = 0
    long_seen: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    retracted: int = 0
    evicted: int = 0
    steps: int = 0
    seen_blocks: int = 0
    kept_blocks: float = 0.0

    def match_and_insert(self, prompt: Sequence[int]) -> int:
        """Cached tokens of a prompt, whole pages, never the last token; then cache its pages."""
        size, key, matched, matching = self.script.page_size, 0, 0, True
        for start in range(0, len(prompt) - size + 1, size):
            key = zlib.crc32(repr((key, prompt[start : start + size])).encode())
            matching = matching and key in self.pages and start + size < len(prompt)
            matched += size * matching
            self.pages.add(key)
        return matched

    def count_request(self, prompt: int, output: int, cached: int) -> None:
        """A finished reply, in tokens."""
        script = self.script
        self.prompt_tokens += prompt
        self.output_tokens += output
        self.cached_tokens += cached
        self.queried_tokens += prompt
        if output >= script.fault_min_tokens:
            self.output_tokens += script.miscount
            self.retracted += script.retract
            self.evicted += script.evict
        if script.metrics_reset_after and self.served == script.metrics_reset_after:
            self.prompt_tokens = self.output_tokens = self.cached_tokens = self.queried_tokens = 0

    def count_decode_step(self, context: int) -> None:
        """One decode step of one row over `context` tokens."""
        if self.script.spin_target < 0 or not self.script.spin_engaged:
            return
        realised = self.script.spin_realised
        sparsity = self.script.spin_target if realised < 0 else realised
        pages = -(-context // self.script.page_size)
        self.steps += 1
        self.seen_blocks += pages
        self.kept_blocks += pages * (1 - sparsity)

    def spin_block(self) -> dict[str, Any]:
        """The spin block of `/server_info`."""
        layers = self.script.layers
        kept, seen = round(self.kept_blocks), self.seen_blocks
        return {
            "policy": self.script.spin_policy,
            "target_sparsity": self.script.spin_target,
            "steps": self.steps,
            "rows_seeded": self.served,
            "rows_cold": 0,
            "blocks_seeded": seen,
            "blocks_cold": 0,
            "kept_blocks": [kept] * layers,
            "seen_blocks": [seen] * layers,
            "realised_sparsity": 1 - kept / seen if seen else 0.0,
            "kept_share": [kept / seen if seen else 1.0] * layers,
        }
