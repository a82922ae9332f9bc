"""What the mock server is told to do, and what it remembers while it does it."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FAULTS = (
    "none", "early-stop", "short", "in-band-error", "no-done", "abort", "stall", "buffered",
    "http-500", "die", "garbage",
)  # fmt: skip


@dataclass(frozen=True)
class MockScript:
    """How the mock behaves. Times in ms.

    cached: "radix" simulates a paged prefix cache, "absent" reports nothing, a number is reported
    as it is. usage: "continuous", "final", "none". fault hits only requests for at least
    fault_min_tokens tokens, so that warm-up and priming can pass. spin_target negative: no spin
    block. refuse: print this and exit 1 at once.
    """

    ttft_ms: float = 2.0
    itl_ms: float = 2.0
    tokens_per_chunk: int = 1
    empty_first_chunk: int = 0
    usage: str = "continuous"
    token_ids: int = 1
    cached: str = "radix"
    fault: str = "none"
    fault_min_tokens: int = 8
    diverge_at: int = 1 << 30
    page_size: int = 64
    capacity: int = 1_000_000
    max_prompt: int = 1_000_000
    spin_target: float = -1.0
    spin_realised: float = -1.0
    spin_policy: str = "spin"
    spin_engaged: int = 1
    layers: int = 4
    start_delay_ms: float = 0.0
    refuse: str = ""


@dataclass
class MockState:
    """What the mock remembers."""

    script: MockScript
    pages: set[int] = field(default_factory=set)
    running: int = 0
    served: int = 0
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
