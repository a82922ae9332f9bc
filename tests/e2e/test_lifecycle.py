"""The ways a request lives and dies on the real server, and what SPIN then knows of its pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

PAGE = 64
CHUNK = 512
POOL = 6144
RETRACTED = 1200  # four of these fit into the pool with 340 tokens of answer each
LITTLE = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "16"}  # admits more than fits, so it retracts
COMMON = (
    f"--max-total-tokens={POOL}",
    "--max-running-requests=4",
    f"--chunked-prefill-size={CHUNK}",
    "--spin-sparsity=0.5",
)
SCHEDULERS = {"overlap": (), "plain": ("--disable-overlap-schedule",)}


@pytest.fixture(scope="module", params=list(SCHEDULERS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with a small pool, with and without the overlap scheduler."""
    log = tmp_path_factory.mktemp("life") / f"{request.param}.log"
    with serve(log, *COMMON, *SCHEDULERS[request.param], env=LITTLE) as running:
        yield running


@pytest.fixture(autouse=True)
def _emptied(server: Server) -> Iterator[None]:
    """Each test starts from an empty cache and leaves no row behind."""
    server.flush()
    yield
    counts = server.spin()
    assert counts["rows_opened"] == counts["rows_closed"]


def _delta(before: dict, after: dict) -> dict[str, int]:
    keys = ("rows_opened", "rows_closed", "rows_seeded", "rows_cold", "blocks_seeded")
    return {key: after[key] - before[key] for key in keys}


def _blocks(tokens: int) -> int:
    return -(-tokens // PAGE)


def test_a_batch_that_shares_a_prefix_computes_it_once_and_starts_warm(server: Server) -> None:
    """Four branches of a finished request inherit its pages each, and no others."""
    trunk = prompt(20 * PAGE, seed=1)
    server.generate([trunk], 8)
    before = server.spin()
    replies = server.generate([trunk + prompt(40 * i, seed=i) for i in (1, 2, 3, 4)], 20)
    assert [r["meta_info"]["cached_tokens"] for r in replies] == [20 * PAGE] * 4
    change = _delta(before, server.spin())
    assert change["rows_seeded"] == 4
    assert change["blocks_seeded"] == 4 * 20


def test_twins_end_on_the_same_pages(server: Server) -> None:
    """Equal prompts prefilled side by side: whoever ends last, their successor starts warm."""
    ids = prompt(9 * PAGE + 5, seed=2)
    server.generate([ids, ids], 30)
    before = server.spin()
    replies = server.generate([ids + prompt(3, seed=3)], 4)
    assert replies[0]["meta_info"]["cached_tokens"] == 9 * PAGE
    assert _delta(before, server.spin())["blocks_seeded"] == 9


def test_every_chunk_of_a_long_prompt_belongs_to_one_row(server: Server) -> None:
    """A prompt of several prefill chunks opens one row, starts cold, and hands all of it on."""
    ids = prompt(5 * CHUNK + 100, seed=4)
    before = server.spin()
    server.generate([ids], 8)
    first = server.spin()
    assert _delta(before, first) == {
        "rows_opened": 1,
        "rows_closed": 1,
        "rows_seeded": 0,
        "rows_cold": 1,
        "blocks_seeded": 0,
    }
    server.generate([ids + prompt(10, seed=5)], 8)
    assert _delta(first, server.spin())["blocks_seeded"] == len(ids) // PAGE


def test_retraction_and_resume_inherit_only_what_stayed(server: Server) -> None:
    """Rows of retracted requests open again; seeds stay below what the tree can have kept."""
    prompts = [prompt(RETRACTED, seed=10 + i) for i in range(4)]
    before = server.spin()
    retracted = _count(server, "Retract requests")
    replies = server.generate(prompts, 450)
    change = _delta(before, server.spin())
    assert [len(r["output_ids"]) for r in replies] == [450] * 4
    assert _count(server, "Retract requests") > retracted
    again = change["rows_opened"] - 4
    assert again > 0
    assert change["rows_seeded"] + change["rows_cold"] == 4 + again
    # the prompt's pages were in the tree when the request was retracted; its answer's were not
    assert change["blocks_seeded"] <= again * (RETRACTED // PAGE)


def test_an_abort_hands_on_what_was_learned(server: Server) -> None:
    """A request that its user leaves ends like any other: its successor starts warm."""
    ids = prompt(12 * PAGE, seed=20)
    before = server.spin()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(server.generate, [ids], 3000, rid=["left"])
        _wait(lambda: server.spin()["steps"] > before["steps"] + 20)
        server.post("/abort_request", {"rid": "left"})
        meta = reply.result(timeout=60)[0]["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    first = server.spin()
    assert first["rows_closed"] - before["rows_closed"] == 1
    server.generate([ids + prompt(10, seed=21)], 4)
    assert _delta(first, server.spin())["blocks_seeded"] == 12


def test_an_abort_during_prefill_leaves_nothing(server: Server) -> None:
    """A request that is left between two chunks closes its row; the next one starts cold."""
    ids = prompt(POOL - 512, seed=22)
    before = server.spin()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(server.generate, [ids], 8, rid=["early"])
        _wait(lambda: server.spin()["rows_opened"] > before["rows_opened"])
        server.post("/abort_request", {"rid": "early"})
        assert reply.result(timeout=60)[0]["meta_info"]["finish_reason"]["type"] == "abort"
    _wait(lambda: server.spin()["rows_closed"] == server.spin()["rows_opened"])
    first = server.spin()
    server.generate([ids[: 4 * CHUNK]], 8)
    change = _delta(first, server.spin())
    assert change["rows_cold"] == 1
    assert change["blocks_seeded"] == 0


def test_many_lives_at_once(server: Server) -> None:
    """Concurrent requests, more than rows, of all kinds: rows and starts add up at the end."""
    before = server.spin()
    trunk = prompt(600, seed=30)
    lengths = [1, 63, 64, 65, 300, 700, 128, 5]
    barrier = threading.Barrier(len(lengths))

    def one(i: int) -> list[dict]:
        barrier.wait(timeout=60)
        own = prompt(lengths[i], seed=31 + i)
        return server.generate([trunk + own] if i % 2 else [own], 40 + i)

    with ThreadPoolExecutor(len(lengths)) as pool:
        answers = list(pool.map(one, range(len(lengths))))
    assert [len(a[0]["output_ids"]) for a in answers] == [40 + i for i in range(len(lengths))]
    change = _delta(before, server.spin())
    assert change["rows_opened"] == change["rows_closed"]
    assert change["rows_seeded"] + change["rows_cold"] == change["rows_opened"]


def _count(server: Server, text: str) -> int:
    return server.log.read_text(errors="replace").count(text)


def _wait(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
