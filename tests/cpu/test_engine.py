"""The real server on the CPU engine: one prompt has one continuation, however it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

TOKENS = 40
SHARED = 1990  # not a multiple of the page, and past index_topk (128)
OTHER_SCHEDULE = ("--disable-overlap-schedule", "--chunked-prefill-size=512")


def _prompts() -> list[list[int]]:
    shared = prompt(SHARED, seed=1)
    return [shared + prompt(1 + 61 * i, seed=2 + i) for i in range(5)]


def _tokens(replies: list[dict]) -> list[list[int]]:
    return [reply["output_ids"] for reply in replies]


def _hits(replies: list[dict]) -> list[int]:
    return [reply["meta_info"]["cached_tokens"] for reply in replies]


def _singles(server: Server) -> list[list[int]]:
    """Each prompt alone on an empty cache."""
    found = []
    for one in _prompts():
        server.flush()
        replies = server.generate([one], TOKENS)
        assert _hits(replies) == [0]
        found += _tokens(replies)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A stock server with the defaults."""
    log = tmp_path_factory.mktemp("cpu") / "server.log"
    with serve(log, "--no-spin", "--enable-metrics") as running:
        yield running


@pytest.fixture(scope="module")
def singles(server: Server) -> list[list[int]]:
    """The reference continuations."""
    return _singles(server)


def test_the_continuations_differ(singles: list[list[int]]) -> None:
    """The model answers prompts differently, so that equal tokens mean something."""
    assert len({tuple(tokens) for tokens in singles}) == len(singles)


def test_cached_equals_uncached(server: Server, singles: list[list[int]]) -> None:
    """A prompt whose first pages are cached continues like the uncached prompt."""
    server.flush()
    server.generate([prompt(SHARED, seed=1)], 1)
    replies = [server.generate([one], TOKENS)[0] for one in _prompts()]
    assert min(_hits(replies)) >= SHARED // 64 * 64
    assert _tokens(replies) == singles


def test_batched_equals_single(server: Server, singles: list[list[int]]) -> None:
    """Prompts in one batch, uncached and then cached, continue as they do alone."""
    server.flush()
    assert _tokens(server.generate(_prompts(), TOKENS)) == singles
    again = server.generate(_prompts(), TOKENS)
    assert min(_hits(again)) > 0
    assert _tokens(again) == singles


def test_the_schedule_does_not_matter(tmp_path: Path, singles: list[list[int]]) -> None:
    """Without overlap scheduling and with smaller prefill chunks the tokens are the same."""
    with serve(tmp_path / "server.log", "--no-spin", *OTHER_SCHEDULE) as other:
        assert _singles(other) == singles


def test_the_usual_routes_answer(server: Server) -> None:
    """Completions speak text, /server_info names the options, /metrics counts cached tokens."""
    body = {"model": "tiny", "prompt": "t40 t41 t42", "max_tokens": 4, "temperature": 0}
    text = server.post("/v1/completions", body)["choices"][0]["text"]
    assert all(word.startswith("t") for word in text.split())
    assert server.get("/server_info")["attention_backend"] == "dsa"
