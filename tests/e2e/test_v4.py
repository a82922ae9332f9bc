"""SPIN on a DeepSeek-V4 server: skipping nothing is SGLang bit for bit, and the rest is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

PAGE = 256  # tokens, 64 entries of the C4 indexer, one block
CHUNK = 2048  # tokens of a prefill chunk, by the CPU engine's defaults
TOPK_TOKENS = 2048  # up to here the indexer selects everything
C4_LAYERS = [1, 3]
# no entry yet, around a window, a page and the reach of top-k, and over several prefill chunks
LENGTHS = (1, 3, 127, 255, 256, 257, 2049, 5100)
TOKENS = 20
LONG = 11_800  # 47 blocks, also after 40 more tokens; top-k needs 9


def _identity_trace(server: Server) -> list[tuple]:
    """Tokens, log-probabilities and cached counts of a lone request, a batch, and prefix hits."""
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    replies = server.generate([prompts[-1]], 8, return_logprob=True)
    server.flush()
    replies += server.generate(prompts, TOKENS, return_logprob=True)
    longer = [p + prompt(37, seed=5) for p in prompts]
    hits = server.generate(longer, 8, return_logprob=True)
    assert sum(reply["meta_info"]["cached_tokens"] > 0 for reply in hits) >= 3
    return [_outcome(reply) for reply in (*replies, *hits)]


def _outcome(reply: dict[str, Any]) -> tuple:
    meta = reply["meta_info"]
    scores = [entry[0] for entry in meta["output_token_logprobs"]]
    return reply["output_ids"], scores, meta["cached_tokens"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """What stock SGLang answers."""
    with serve(tmp_path_factory.mktemp("v4") / "stock.log", "--no-spin", model="tiny-v4") as server:
        assert server.spin() is None
        return _identity_trace(server)


@pytest.mark.parametrize("arm", ["--spin-policy=dense", "--spin-sparsity=0"])
def test_skipping_nothing_changes_nothing(stock: list[tuple], arm: str, tmp_path: Path) -> None:
    """Through SPIN's whole step with every block kept, answers equal stock's exactly."""
    with serve(tmp_path / "server.log", arm, model="tiny-v4") as server:
        answers = _identity_trace(server)
        counts = server.spin()
    assert counts["layers"] == C4_LAYERS
    assert counts["steps"] >= TOKENS
    assert counts["kept_blocks"] == counts["seen_blocks"]
    assert answers == stock


def _delta(server: Server, prompts: list[list[int]], tokens: int) -> tuple[dict, list[dict]]:
    before = server.spin()
    replies = server.generate(prompts, tokens)
    after = server.spin()
    keys = ("steps", "rows_seeded", "rows_cold", "blocks_seeded", "blocks_cold")
    counted = {key: after[key] - before[key] for key in keys}
    for key in ("kept_blocks", "seen_blocks"):
        counted[key] = [b - a for a, b in zip(before[key], after[key], strict=True)]
    return counted, replies


def test_blocks_of_256_tokens_are_seeded_and_skipped(stock: list[tuple], tmp_path: Path) -> None:
    """One server at sparsity 0.9: other answers, the planned share, and history by prefix."""
    # without audits, whose full steps would be counted, too
    options = ("--spin-sparsity=0.9", "--spin-audit-every=0")
    with serve(tmp_path / "server.log", *options, model="tiny-v4") as server:
        assert _identity_trace(server) != stock  # the identity above is not vacuous
        server.flush()

        # a cold request has all of its blocks scored once, then what top-k needs, in each layer
        first = prompt(LONG, seed=1)
        turn, replies = _delta(server, [first], 40)
        blocks = -(-(LONG + 1) // PAGE)
        assert (turn["rows_seeded"], turn["blocks_cold"]) == (0, blocks)
        steps = turn["steps"]
        assert steps >= 39
        assert turn["seen_blocks"] == [blocks * steps] * len(C4_LAYERS)
        floor = TOPK_TOKENS // PAGE + 1
        assert turn["kept_blocks"] == [blocks + floor * (steps - 1)] * len(C4_LAYERS)

        # its next turn hits the cache, and every cached block inherits a score
        second = first + replies[0]["output_ids"] + prompt(300, seed=2)
        turn, replies = _delta(server, [second], 8)
        cached = replies[0]["meta_info"]["cached_tokens"]
        assert cached >= LONG // PAGE * PAGE
        assert turn["blocks_seeded"] == cached // PAGE
        assert turn["blocks_cold"] == -(-(len(second) + 1) // PAGE) - cached // PAGE

        # a request that shares a chunk inherits exactly its pages, and a flush forgets them; a hit
        # ends where the sliding window is still there, which is where a prefill chunk ended
        shared = first[:CHUNK] + prompt(500, seed=4)
        turn, replies = _delta(server, [shared], 8)
        assert replies[0]["meta_info"]["cached_tokens"] == CHUNK
        assert turn["blocks_seeded"] == CHUNK // PAGE
        server.flush()
        turn, _ = _delta(server, [shared], 8)
        assert (turn["rows_cold"], turn["blocks_seeded"]) == (1, 0)
