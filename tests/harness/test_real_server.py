"""The client and the counters' proof against the real engine on the CPU: SGLang with tiny-dsa."""

import asyncio
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.client import open_session
from harness.control import server_facts
from harness.metric_map import SGLANG
from harness.phases import run_arm
from harness.progress import Progress
from harness.runcontext import RunContext
from harness.runrecord import ArmRun
from harness.server import Server
from harness.spec import Arm
from harness.wire import WIRES
from tests.harness.helpers import make_spec

pytestmark = pytest.mark.slow

COMMAND = (
    "python -m sglang_spin.launch --model tiny-dsa --port {port} --no-spin --enable-cache-report "
    "--enable-metrics --incremental-streaming-output"
)
SPEC = make_spec(
    workload={
        "cached_tokens": 500,
        "new_tokens": 40,
        "output_tokens": 16,
        "concurrency": 4,
        "content": {"kind": "topics", "topics": 32, "ids_per_topic": 32},
    },
    # two cores shared with the server: nothing here is about time
    window="full_run",
    warmup={"tolerance": 10},
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A stock server that reports its cache and its metrics."""
    folder: Path = tmp_path_factory.mktemp("server")
    made = Server("stock", Arm(command=COMMAND), folder / "server.log")
    try:
        asyncio.run(made.start(400))
        yield made
    finally:
        made.stop()


def run_on(server: Server, wire: str, pair: int) -> ArmRun:
    """All phases of one run against the real server."""
    run = ArmRun(arm="stock", pair=pair, position=0)

    async def use() -> None:
        async with open_session(server.base_url) as session:
            facts = replace(await server_facts(session), wire=WIRES[wire])
            await run_arm(RunContext(SPEC, session, facts, Progress(io.StringIO())), run)

    asyncio.run(use())
    return run


@pytest.mark.parametrize(("pair", "wire"), list(enumerate(["completions", "generate", "chat"])))
def test_replies_and_counters_agree(server: Server, pair: int, wire: str) -> None:
    """In every format the cache is exact, and the counters rise by what the replies say."""
    run = run_on(server, wire, pair)
    assert run.problems == []
    # whole pages of 64 of the 500 primed tokens
    assert run.expected_cached == 448
    assert [record.cached_tokens for record in run.records] == [448] * 4
    assert [record.itl_basis for record in run.records] == ["usage"] * 4
    assert run.telemetry.complete
    assert run.telemetry.rise(SGLANG.prompt_tokens) == 4 * 540
    assert run.telemetry.rise(SGLANG.output_tokens) == 4 * 16
    assert run.telemetry.rise(SGLANG.cached_tokens) == 4 * 448


def test_formats_say_the_same(server: Server) -> None:
    """Completions and /generate give the same greedy ids for the same prompts."""
    completions, generate = (run_on(server, wire, 7) for wire in ("completions", "generate"))
    assert [list(r.output_ids) for r in completions.records] == [
        list(r.output_ids) for r in generate.records
    ]
    assert all(len(record.output_ids) == 16 for record in completions.records)
