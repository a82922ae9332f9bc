"""HiCache: pages that went to host memory and came back are the same keys on other pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

PAGE = 64
TRUNK, MINE, OTHER = 20 * PAGE, 1000, 2000
OPTIONS = (
    "--max-total-tokens=4096",  # the trunk and both branches do not fit together
    "--max-running-requests=2",
    "--enable-hierarchical-cache",
    "--hicache-ratio=3",
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small device pool and a larger host pool."""
    log = tmp_path_factory.mktemp("host") / "server.log"
    with serve(log, "--spin-policy=dense", *OPTIONS) as running:
        yield running


def test_loaded_pages_answer_alike_and_start_cold(server: Server) -> None:
    """What stayed on the device is seeded; what was loaded back was scored on other pages."""
    server.flush()
    trunk = prompt(TRUNK, seed=1)
    mine, other = trunk + prompt(MINE, seed=2), trunk + prompt(OTHER, seed=3)
    first = server.generate([mine], 24)[0]
    server.generate([other], 24)  # takes the pages of my branch, and keeps the trunk
    before = server.spin()
    again = server.generate([mine], 24)[0]
    after = server.spin()
    origin = again["meta_info"]["cached_tokens_details"]
    assert origin == {"device": TRUNK, "host": MINE // PAGE * PAGE}
    assert again["output_ids"] == first["output_ids"]
    assert after["blocks_seeded"] - before["blocks_seeded"] == TRUNK // PAGE
    blocks = -(-(TRUNK + MINE + 1) // PAGE)
    assert after["blocks_cold"] - before["blocks_cold"] == blocks - TRUNK // PAGE


def test_what_was_loaded_back_hands_on_what_it_learns(server: Server) -> None:
    """The next request on the loaded pages starts warm on all of them."""
    mine = prompt(TRUNK, seed=1) + prompt(MINE, seed=2)
    before = server.spin()
    reply = server.generate([mine + prompt(10, seed=4)], 4)[0]
    cached = (TRUNK + MINE) // PAGE * PAGE
    assert reply["meta_info"]["cached_tokens_details"] == {"device": cached, "host": 0}
    assert server.spin()["blocks_seeded"] - before["blocks_seeded"] == cached // PAGE
