"""A long story of requests, told alike to stock SGLang, to SPIN that skips nothing, and to SPIN."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e.server import Server, serve
from tests.e2e.story import Answer, Story, differences, summary, tell_wave, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

REQUESTS = 500
WARM_UP = 150  # requests after which memory must not grow
COMMON = (
    "--max-total-tokens=6144",
    "--max-running-requests=6",
    "--chunked-prefill-size=512",
    "--context-length=2048",
)
ARMS = {
    "stock": ("--no-spin",),
    "dense": ("--spin-policy=dense",),
    "spin": ("--spin-sparsity=0.5",),
}
GROWTH_MB = 64.0


def _resident_mb(server: Server) -> float:
    """Resident memory of all processes of the server, in MB."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == server.process.pid:  # the session
                    total += int((folder / "statm").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return total * page / 1e6


class _Arm:
    """One server's part: answers, memory after the warm-up and at the end, SPIN's counters."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.memory: list[float] = []
        self.counters: dict | None = None
        self.seconds = 0.0


def _served(folder: Path, arm: str) -> AbstractContextManager[Server]:
    env = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "16"}
    return serve(folder / f"{arm}.log", *COMMON, *ARMS[arm], env=env)


def _tell(server: Server, story: Story, arm: _Arm) -> None:
    for index, wave in enumerate(story.waves):
        arm.answers |= tell_wave(server, wave, flush=index in story.flushes)
        if len(arm.answers) >= WARM_UP:
            arm.memory.append(_resident_mb(server))


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, _Arm]:
    """The story, told to each server."""
    folder = tmp_path_factory.mktemp("soak")
    done: dict[str, _Arm] = {}
    story = Story()
    for name in ARMS:
        arm = done[name] = _Arm()
        with _served(folder, name) as server:
            begun = time.monotonic()
            if name == "stock":
                story, arm.answers = write(server, REQUESTS, seed=11)
                for _ in range(3):
                    arm.memory.append(_resident_mb(server))
                    time.sleep(1)
            else:
                _tell(server, story, arm)
                server.flush()
                arm.counters = server.spin()
            arm.seconds = time.monotonic() - begun
        sys.stderr.write(
            f"{name} {arm.seconds:.1f} s {summary(arm.answers)} {arm.memory}\n{arm.counters}\n"
        )
    return done


def test_stock_and_dense_answer_alike(arms: dict[str, _Arm]) -> None:
    """Token for token over the whole story, whatever batches the requests met in."""
    assert len(arms["stock"].answers) == REQUESTS
    assert differences(arms["stock"].answers, arms["dense"].answers) == []
