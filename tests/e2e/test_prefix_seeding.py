"""History crosses requests by page: a shared prefix starts warm, a reused page starts cold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

PAGE = 64
POOL = 4096  # tokens: two prompts of 2,400 do not fit together


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a pool small enough to evict."""
    log = tmp_path_factory.mktemp("seeding") / "server.log"
    with serve(log, f"--max-total-tokens={POOL}", "--max-running-requests=2") as running:
        yield running


def _delta(server: Server, prompts: list[list[int]], tokens: int) -> tuple[dict, list[dict]]:
    before = server.spin()
    replies = server.generate(prompts, tokens)
    after = server.spin()
    keys = ("rows_seeded", "rows_cold", "blocks_seeded", "blocks_cold")
    return {key: after[key] - before[key] for key in keys}, replies


def test_turn_two_starts_warm(server: Server) -> None:
    """Every cached block of turn 2 inherits a score; only the new ones are cold."""
    server.flush()
    first = prompt(1500, seed=1)
    turn, replies = _delta(server, [first], 40)
    assert turn == {"rows_seeded": 0, "rows_cold": 1, "blocks_seeded": 0, "blocks_cold": 24}
    second = first + replies[0]["output_ids"] + prompt(100, seed=2)
    turn, replies = _delta(server, [second], 8)
    cached = replies[0]["meta_info"]["cached_tokens"]
    assert cached >= 1500 // PAGE * PAGE
    blocks = -(-(len(second) + 1) // PAGE)
    assert turn["rows_seeded"] == 1
    assert turn["blocks_seeded"] == cached // PAGE
    assert turn["blocks_cold"] == blocks - cached // PAGE


def test_a_shared_prefix_seeds_its_part_only(server: Server) -> None:
    """A request that shares 10 pages inherits exactly those 10."""
    server.flush()
    shared = prompt(10 * PAGE, seed=3)
    _delta(server, [shared + prompt(500, seed=4)], 8)
    turn, replies = _delta(server, [shared + prompt(500, seed=5)], 8)
    assert replies[0]["meta_info"]["cached_tokens"] == 10 * PAGE
    assert turn["blocks_seeded"] == 10
    assert turn["rows_seeded"] == 1


def test_evicted_and_reused_pages_start_cold(server: Server) -> None:
    """After another request took its pages, the first prompt finds nothing and inherits nothing."""
    server.flush()
    mine, other = prompt(2400, seed=6), prompt(2400, seed=7)
    _delta(server, [mine], 8)
    turn, replies = _delta(server, [other], 8)
    assert replies[0]["meta_info"]["cached_tokens"] == 0
    assert turn["blocks_seeded"] == 0
    turn, replies = _delta(server, [mine], 8)
    evicted_from = replies[0]["meta_info"]["cached_tokens"] // PAGE
    assert evicted_from < 2400 // PAGE
    assert turn["blocks_seeded"] == evicted_from
    assert turn["blocks_seeded"] + turn["blocks_cold"] == -(-2401 // PAGE)


def test_a_flush_forgets(server: Server) -> None:
    """After /flush_cache the same prompt is cold although the page numbers come round again."""
    server.flush()
    ids = prompt(1000, seed=8)
    _delta(server, [ids], 8)
    server.flush()
    turn, _ = _delta(server, [ids], 8)
    assert turn["blocks_seeded"] == 0
    assert turn["rows_cold"] == 1


def test_a_request_without_decode_hands_nothing_on(server: Server) -> None:
    """One output token means no decode step and no scores: the next request starts cold."""
    server.flush()
    ids = prompt(1000, seed=9)
    _delta(server, [ids], 1)
    turn, replies = _delta(server, [ids + prompt(10, seed=10)], 8)
    assert replies[0]["meta_info"]["cached_tokens"] > 0
    assert turn["blocks_seeded"] == 0
