"""The same campaign against a server that answers as vLLM does (the mock; no vLLM is here)."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import ClientSession, web

from harness.command import RunCommand, execute
from harness.control import (
    cache_hits,
    flush,
    read_spin,
    server_facts,
    settle_unreported,
    wait_idle,
)
from harness.errors import HarnessError, PreflightError
from harness.mock_script import MockScript, MockState
from harness.progress import Progress
from tests.harness.helpers import spec_dict, with_app, with_mock
from tests.harness.traps import bodies, stream_all, whole_run


def in_vllm(use: Callable[[ClientSession, MockState], Awaitable[None]], **script: object) -> None:
    """Run `use` against a mock that answers as vLLM."""
    asyncio.run(with_mock(MockScript(dialect="vllm", **script), use))  # type: ignore[arg-type]


def test_facts_of_a_vllm_server() -> None:
    """Block size, capacity and longest prompt come from where vLLM has them."""

    async def use(session: ClientSession, _: MockState) -> None:
        facts = await server_facts(session)
        assert (facts.kind, facts.model, facts.page_size) == ("vllm", "mock", 16)
        assert (facts.capacity_tokens, facts.max_prompt_tokens) == (16_000, 5000)
        assert facts.expected_cached(100) == 96
        assert await read_spin(session) is None

    in_vllm(use, page_size=16, capacity=16_000, max_prompt=5000)


def test_whole_run_with_zero_left_out() -> None:
    """A vLLM that leaves cached_tokens out when it is 0 is primed and verified all the same."""
    run = whole_run(dialect="vllm", cached_zero_absent=1, page_size=16)
    assert run.problems == []
    assert (run.flushed, run.primed) == (True, True)
    assert {record.cached_tokens for record in run.records} == {256}


def test_t17_reporting_switched_off_is_found_out() -> None:
    """A vLLM without --enable-prompt-tokens-details passes priming, but not the verification."""
    run = whole_run(dialect="vllm", cached="absent")
    assert run.records == []
    assert run.problems[0].startswith("verify: cached_tokens")
    assert "unverifiable" in run.problems[0]


def test_zero_is_believed_only_with_the_counter() -> None:
    """An unreported count is 0 where the hits counter stood still, and stays unknown otherwise."""

    async def use(session: ClientSession, state: MockState) -> None:
        facts = await server_facts(session)
        before = await cache_hits(session, facts)
        (fresh,) = await stream_all(session, bodies(1))
        (again,) = await stream_all(session, bodies(1))
        after = await cache_hits(session, facts)
        assert (fresh.cached_tokens, again.cached_tokens) == (None, 64)
        settle_unreported(fresh, before, after)
        assert fresh.cached_tokens is None
        settle_unreported(fresh, before, before)
        assert fresh.cached_tokens == 0
        settle_unreported(again, before, before)
        assert again.cached_tokens == 64

    in_vllm(use, cached_zero_absent=1)


@pytest.mark.parametrize("refused", [{"status": 409}, {"body": {"success": False}}])
def test_t15_reset_that_says_no(refused: dict[str, object]) -> None:
    """A reset that answers 409, or 200 with success false, is retried and then an error."""
    asked = 0

    async def reset(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response(refused.get("body"), status=int(str(refused.get("status", 200))))

    async def use(session: ClientSession) -> None:
        with pytest.raises(HarnessError, match="last answer: HTTP"):
            await flush(session, 0.5)

    app = web.Application()
    app.add_routes([web.post("/reset_prefix_cache", reset)])
    asyncio.run(with_app(app, use))
    assert asked >= 2


def test_reset_that_is_not_there_says_what_to_do() -> None:
    """Without development mode vLLM has no reset: one line that names the variable."""

    async def use(session: ClientSession) -> None:
        with pytest.raises(HarnessError, match="VLLM_SERVER_DEV_MODE=1"):
            await flush(session, 5)

    asyncio.run(with_app(web.Application(), use))


def test_idle_is_read_from_the_gauges() -> None:
    """A vLLM is idle when nothing runs or waits by its gauges."""

    async def use(session: ClientSession, state: MockState) -> None:
        assert await wait_idle(session, 10) is None
        state.waiting = 1
        with pytest.raises(HarnessError, match="still not idle"):
            await wait_idle(session, 0.5)

    in_vllm(use)


def test_server_of_neither_kind_is_refused() -> None:
    """A server that tells no page size in either way is refused."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="up 1\n")

    async def use(session: ClientSession) -> None:
        with pytest.raises(PreflightError, match="no vllm:cache_config_info"):
            await server_facts(session)

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.get("/metrics", metrics)])
    asyncio.run(with_app(app, use))


def test_whole_campaign_of_two_vllm_arms(tmp_path: Path) -> None:
    """A pair of two vLLM arms, started by the harness, ends valid, proved by their counters."""
    command = "python -m harness.mock --port {port} --dialect vllm --page-size 16 --itl-ms 8 "
    arms = {
        "stock": {"command": command + "--cached-zero-absent 1"},
        "other": {"command": command + "--cached-zero-absent 1 --chunk-tokens 2"},
    }
    made = spec_dict() | {"arms": arms}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(made))
    code = execute(RunCommand(path, results=tmp_path), Progress(io.StringIO()))
    summary = json.loads((tmp_path / "test" / "latest" / "summary.json").read_text())
    assert summary["invalid_reasons"] == []
    assert code == 0
    assert not [note for note in summary["notes"] if "metrics" in note]
    # twice the tokens in every step
    assert 1.2 < summary["ratios"]["other"]["output_tok_s"]["estimate"] < 3
    environment = json.loads((tmp_path / "test" / "latest" / "env.json").read_text())
    assert environment["servers"]["other"]["server"] == "vllm"


def test_format_that_the_server_does_not_have() -> None:
    """A run in SGLang's own format on vLLM ends at once and says what the server answered."""
    run = whole_run(dialect="vllm", wire="generate")
    assert run.records == []
    assert "HTTP 404" in run.problems[0]
