"""SPIN that skips nothing is SGLang: same tokens and same log-probabilities, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

# one token, around page boundaries (64), around index_topk (128) and over several prefill chunks
LENGTHS = (1, 63, 64, 65, 127, 128, 129, 640, 2049, 4500)
TOKENS = 70  # more than a page, so that every request crosses a page boundary while decoding
ARMS = {
    "dense": ("--spin-policy=dense",),
    "sparsity 0": ("--spin-sparsity=0",),
    "paper, sparsity 0": ("--spin-policy=spin-paper", "--spin-sparsity=0"),
}


def _trace(server: Server) -> list[tuple]:
    """Tokens and log-probabilities of singles, a batch, and the same prompts continued on a hit."""
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    replies = []
    for lone in (prompts[3], prompts[-2]):
        replies += server.generate([lone], 8, return_logprob=True)
    server.flush()
    replies += server.generate(prompts, TOKENS, return_logprob=True)
    longer = [p + prompt(37, seed=5) for p in prompts]
    hits = server.generate(longer, 8, return_logprob=True)
    assert sum(r["meta_info"]["cached_tokens"] > 0 for r in hits) >= 6
    return [_outcome(r) for r in (*replies, *hits)]


def _outcome(reply: dict) -> tuple:
    meta = reply["meta_info"]
    scores = [entry[0] for entry in meta["output_token_logprobs"]]
    return reply["output_ids"], scores, meta["cached_tokens"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple]]:
    """What stock SGLang answers, with and without the overlap scheduler."""
    answers = {}
    for name, extra in (("overlap", ()), ("plain", ("--disable-overlap-schedule",))):
        log = tmp_path_factory.mktemp("stock") / f"{name}.log"
        with serve(log, "--no-spin", *extra) as server:
            assert server.spin() is None
            answers[name] = _trace(server)
    return answers


@pytest.mark.parametrize(
    ("arm", "scheduler"),
    [
        ("dense", "overlap"),
        ("dense", "plain"),
        ("sparsity 0", "overlap"),
        ("sparsity 0", "plain"),
        ("paper, sparsity 0", "overlap"),
    ],
)
def test_skipping_nothing_changes_nothing(
    stock: dict[str, list[tuple]], arm: str, scheduler: str, tmp_path: Path
) -> None:
    """Through SPIN's whole step with every block kept, answers equal stock's exactly."""
    extra = () if scheduler == "overlap" else ("--disable-overlap-schedule",)
    # one as users start it, whose answers are those of the stock server that was forked
    fresh = (arm, scheduler) == ("dense", "plain")
    with serve(tmp_path / "server.log", *ARMS[arm], *extra, fresh=fresh) as server:
        before = server.spin()
        answers = _trace(server)
        after = server.spin()
    assert after["steps"] - before["steps"] >= TOKENS
    assert after["kept_blocks"] == after["seen_blocks"]
    assert answers == stock[scheduler]


def test_skipping_blocks_is_visible(tmp_path: Path, stock: dict[str, list[tuple]]) -> None:
    """The identity above is not vacuous: at sparsity 0.9 the long requests answer differently."""
    with serve(tmp_path / "server.log", "--spin-policy=random", "--spin-sparsity=0.9") as server:
        answers = _trace(server)
        counts = server.spin()
    assert counts["realised_sparsity"] > 0.3
    assert answers != stock["overlap"]
