"""The phases before and after the load, against the scripted server."""

import asyncio
import io
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import ClientSession, web

from harness import control
from harness.control import flush, server_facts, wait_idle
from harness.errors import HarnessError, PreflightError
from harness.mock_script import MockScript, MockState
from harness.phases import prime, run_arm, verify
from harness.preflight import check_server
from harness.progress import Progress
from harness.runcontext import PhaseFailed, RunContext
from harness.runrecord import ArmRun
from harness.warmup import warm_up
from tests.harness.helpers import make_spec, with_app, with_mock

SPEC = make_spec()
STOCK = MockScript(itl_ms=4)


def in_context(script: MockScript, use: Callable[[RunContext, MockState], Awaitable[None]]) -> None:
    """Run `use` with a context whose server is a mock."""

    async def with_session(session: ClientSession, state: MockState) -> None:
        facts = await server_facts(session)
        await use(RunContext(SPEC, session, facts, Progress(io.StringIO())), state)

    asyncio.run(with_mock(script, with_session))


def run_once(script: MockScript, arm: str = "stock", pair: int = 0) -> ArmRun:
    """All phases of one run."""
    run = ArmRun(arm=arm, pair=pair, position=0)

    async def use(context: RunContext, _: MockState) -> None:
        await run_arm(context, run)

    in_context(script, use)
    return run


def test_whole_run() -> None:
    """A sound server gives a run without problems whose state is recorded."""
    run = run_once(STOCK)
    assert run.problems == []
    assert (run.flushed, run.primed, run.expected_cached) == (True, True, 256)


def test_t13_second_run_does_not_see_the_first() -> None:
    """The same run twice on one server finds exactly the primed context both times."""

    async def use(context: RunContext, _: MockState) -> None:
        for _repeat in range(2):
            run = ArmRun(arm="stock", pair=0, position=0)
            await run_arm(context, run)
            assert run.problems == []
            assert [record.cached_tokens for record in run.records] == [256, 256]

    in_context(STOCK, use)


def test_t13_context_that_was_already_cached_is_refused() -> None:
    """Priming a context that is in the cache means the flush did not work."""

    async def use(context: RunContext, _: MockState) -> None:
        await prime(context, pair=0)
        with pytest.raises(PhaseFailed, match="192, expected 0"):
            await prime(context, pair=0)

    in_context(STOCK, use)


def test_t13_each_pair_has_other_prompts() -> None:
    """The context of one pair is unknown to the next."""

    async def use(context: RunContext, _: MockState) -> None:
        await prime(context, pair=0)
        await prime(context, pair=1)
        await verify(context, 1, expected_cached=256)

    in_context(STOCK, use)


def test_verify_notices_a_lost_context() -> None:
    """A context that is not in the cache fails before any load."""

    async def use(context: RunContext, _: MockState) -> None:
        with pytest.raises(PhaseFailed, match="0, expected 256"):
            await verify(context, 0, expected_cached=256)

    in_context(STOCK, use)


def test_t15_flush_waits_for_a_busy_server_and_fails_for_good() -> None:
    """A flush is retried while the server is busy, and its failure is an error."""

    async def use(context: RunContext, state: MockState) -> None:
        state.running = 1
        asyncio.get_running_loop().call_later(0.3, setattr, state, "running", 0)
        await flush(context.session, 20)
        state.running = 1
        with pytest.raises(HarnessError, match="HTTP 400 Flush cache failed"):
            await flush(context.session, 0.3)

    in_context(STOCK, use)


def test_t15_failed_flush_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose flush fails is not loaded and says why."""

    async def fail(session: ClientSession, timeout_s: float) -> None:
        raise HarnessError("POST /flush_cache failed")

    monkeypatch.setattr("harness.phases.flush", fail)
    run = run_once(STOCK)
    assert run.problems == ["flush: POST /flush_cache failed"]
    assert run.records == []


def test_t16_warm_up_does_not_prime() -> None:
    """After a warm-up without flush nothing of the measured prompts is cached."""

    async def use(context: RunContext, state: MockState) -> None:
        await warm_up(context, ArmRun(arm="stock", pair=0, position=0))
        assert state.pages
        await prime(context, pair=0)

    in_context(MockScript(page_size=16, itl_ms=4), use)


def test_t27_snapshot_waits_until_counters_are_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the counters still move the server is not idle."""

    async def use(context: RunContext, state: MockState) -> None:
        reads = 0
        genuine = control.read_spin

        async def moving(session: ClientSession) -> object:
            nonlocal reads
            reads += 1
            state.steps += reads < 4
            return await genuine(session)

        monkeypatch.setattr(control, "read_spin", moving)
        counters = await wait_idle(context.session, 20)
        assert counters is not None
        assert counters.steps == 3

    in_context(MockScript(spin_target=0.4), use)


def test_t27_busy_server_is_not_idle() -> None:
    """A server that stays busy is an error that names the limit."""

    async def use(context: RunContext, state: MockState) -> None:
        state.running = 1
        with pytest.raises(HarnessError, match=r"not idle after 0\.5 s"):
            await wait_idle(context.session, 0.5)

    in_context(STOCK, use)


def test_t32_warm_up_goes_on_until_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are repeated until two agree, at most max_rounds."""
    rates = iter([100.0, 130.0, 131.0, 1.0])
    monkeypatch.setattr("harness.warmup._warm_rate", lambda records: next(rates))
    spec = make_spec(warmup={"max_rounds": 4})
    run = ArmRun(arm="stock", pair=0, position=0)

    async def use(context: RunContext, _: MockState) -> None:
        await warm_up(RunContext(spec, context.session, context.facts, context.progress), run)

    in_context(STOCK, use)
    assert run.warm_tok_s == [100.0, 130.0, 131.0]
    assert run.warm_steady


def test_spin_use_is_of_the_load_only() -> None:
    """Steps of warm-up and priming are not in the run's counters."""
    run = run_once(MockScript(itl_ms=4, spin_target=0.4), arm="spin")
    assert run.problems == []
    assert run.spin is not None
    assert run.spin.steps == 2 * 12


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (MockScript(capacity=300), "needs 345 KV entries, the server holds 300"),
        (MockScript(max_prompt=299), "requests grow to 300 tokens"),
        (MockScript(spin_target=0.4), "runs SPIN, but the spec says it must not"),
    ],
)
def test_server_that_cannot_run_the_workload(script: MockScript, words: str) -> None:
    """Capacity, context length and a wrong kind of server are refused before any load."""

    async def use(context: RunContext, _: MockState) -> None:
        with pytest.raises(PreflightError, match=words):
            check_server(SPEC, "stock", context.facts)

    in_context(script, use)


def test_t28_server_without_page_size_is_refused() -> None:
    """A server that does not say its page size cannot be verified; other gaps are tolerated."""

    async def info(_: web.Request) -> web.Response:
        return web.json_response(answer)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def use(session: ClientSession) -> None:
        with pytest.raises(PreflightError, match="no page_size"):
            await server_facts(session)
        answer["page_size"] = 64
        facts = await server_facts(session)
        assert (facts.capacity_tokens, facts.spin) == (None, None)

    answer: dict[str, int] = {}
    app = web.Application()
    app.add_routes([web.get("/server_info", info), web.get("/v1/models", models)])
    asyncio.run(with_app(app, use))
