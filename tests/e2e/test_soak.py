"""A long story of requests, told alike to stock SGLang, to SPIN that skips nothing, and to SPIN."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server, serve
from tests.e2e.story import Answer, Story, differences, summary, tell, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

REQUESTS = 500
WARM_UP = 150  # requests after which memory must not grow
COMMON = (
    "--max-total-tokens=6144",
    "--max-running-requests=6",
    "--chunked-prefill-size=512",
    "--context-length=2048",
)
LITTLE = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "16"}  # admits more than fits, so it retracts
ARMS = {
    "stock": ("--no-spin",),
    "dense": ("--spin-policy=dense",),
    "spin": ("--spin-sparsity=0.5",),
}
# stock itself grows, by 24 MB over 350 requests in one run; SPIN grew by less than stock. Beyond
# stock's growth 30 KB left behind by each request would show
GROWTH_MB = 10.0


@dataclass
class Arm:
    """One server's part. memory: MB after each wave past the warm-up; counters: SPIN's."""

    answers: dict[int, Answer] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    counters: dict[str, Any] | None = None
    flushes: int = 0


def _resident_mb(server: Server) -> float:
    """Resident memory of all processes of the server, in MB."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) == server.process.pid:  # its session
                total += int((folder / "statm").read_text().split()[1])
    return total * page / 1e6


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arm]:
    """The story, told to each server."""
    folder = tmp_path_factory.mktemp("soak")
    done: dict[str, Arm] = {}
    story = Story()
    for name, options in ARMS.items():
        arm = done[name] = Arm()
        with serve(folder / f"{name}.log", *COMMON, *options, env=LITTLE) as server:

            def pause(told: int, arm: Arm = arm, server: Server = server) -> None:
                if told >= WARM_UP:
                    arm.memory.append(_resident_mb(server))

            if name == "stock":
                story, arm.answers = write(server, REQUESTS, 11, pause)
            else:
                arm.answers = tell(server, story, pause)
            server.flush()  # which fails while anything is left
            arm.counters, arm.flushes = server.spin(), len(story.flushes)
    return done


def _grown(arm: Arm) -> float:
    """MB by which a server grew after the warm-up."""
    return max(arm.memory) - arm.memory[0]


def test_the_story_is_eventful(arms: dict[str, Arm], capsys: pytest.CaptureFixture[str]) -> None:
    """It has the requests it promises, many of them on a cached prefix or left by their user."""
    for name, arm in arms.items():
        told = summary(arm.answers)
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {told}, {arm.flushes} flushes, {arm.memory[-1]:.0f} MB")
        assert told["requests"] == REQUESTS
        assert told["aborted"] >= 20
        assert told["with a cached prefix"] >= REQUESTS // 4
        assert arm.flushes >= 3


def test_stock_and_dense_answer_alike(arms: dict[str, Arm]) -> None:
    """Token for token over the whole story, whatever batches the requests met in."""
    assert differences(arms["stock"].answers, arms["dense"].answers) == []


@pytest.mark.parametrize("name", ["dense", "spin"])
def test_memory_grows_no_more_than_stocks(arms: dict[str, Arm], name: str) -> None:
    """From the end of the warm-up on, SPIN adds nothing to what the engine itself grows by."""
    assert len(arms[name].memory) >= 10
    assert _grown(arms[name]) < _grown(arms["stock"]) + GROWTH_MB


@pytest.mark.parametrize("name", ["dense", "spin"])
def test_the_counters_add_up(arms: dict[str, Arm], name: str) -> None:
    """Every row that was opened is closed, and no row starts twice."""
    counters = arms[name].counters
    assert counters is not None
    assert counters["rows_opened"] == counters["rows_closed"]
    assert counters["rows_opened"] >= REQUESTS - summary(arms[name].answers)["aborted"]
    assert 0 < counters["rows_seeded"] + counters["rows_cold"] <= counters["rows_opened"]
    assert counters["blocks_seeded"] > 0
    skipped = counters["realised_sparsity"]
    assert skipped == 0 if name == "dense" else 0.2 < skipped < 0.5


def test_stock_has_no_counters(arms: dict[str, Arm]) -> None:
    """The reference ran without SPIN."""
    assert arms["stock"].counters is None
