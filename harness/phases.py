"""One run, phase by phase: flush, warm up, flush, prime, verify, quiesce, load, validate."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp
import numpy as np

from harness.client import Load, LoadProgress, new_records, run_load, stream_completion
from harness.control import (
    ServerFacts,
    cache_hits,
    flush,
    read_spin,
    settle_unreported,
    wait_idle,
)
from harness.counters import CounterError
from harness.errors import HarnessError
from harness.metric_map import metric_map
from harness.metrics import output_tok_s
from harness.observe import observing
from harness.progress import Progress
from harness.prompts import Role, context_ids, load_bodies, token_ids
from harness.proof import proof_problems
from harness.record import RequestRecord
from harness.runrecord import ArmRun, windows
from harness.spec import Spec
from harness.validity import request_problems, run_problems

PROBE_TOKENS = 16
DISPLAY_S = 0.5


class PhaseFailed(Exception):
    """A phase before the load did not do what it must, so the run is not worth loading."""


@dataclass(frozen=True)
class RunContext:
    """Everything the phases of one run need."""

    spec: Spec
    session: aiohttp.ClientSession
    facts: ServerFacts
    progress: Progress


async def run_arm(context: RunContext, run: ArmRun) -> None:
    """Do all phases and fill `run`; what went wrong is in `run.problems`."""
    run.expected_cached = context.facts.expected_cached(context.spec.workload.cached_tokens)
    try:
        await _prepare(context, run)
        await _load(context, run)
    except (PhaseFailed, CounterError, HarnessError) as error:
        run.problems.append(str(error))
    else:
        run.problems += run_problems(run, context.spec)


async def _prepare(context: RunContext, run: ArmRun) -> None:
    limits = context.spec.limits
    kept = context.spec.workload.prime == "once" and run.pair > 0
    if not kept:
        with _phase(context, "flush", run.label):
            await flush(context.session, limits.flush_s)
    with _phase(context, "warm up", run.label):
        await warm_up(context, run)
    if not kept:
        with _phase(context, "prime", f"{context.spec.workload.lanes} context(s)"):
            await flush(context.session, limits.flush_s)
            run.flushed = True
            await prime(context, run.pair)
            run.primed = True
    with _phase(context, "verify", f"expecting {run.expected_cached} cached tokens"):
        await verify(context, run.pair, run.expected_cached)
    with _phase(context, "quiesce"):
        await wait_idle(context.session, limits.idle_s)


@contextmanager
def _phase(context: RunContext, name: str, detail: str = "") -> Iterator[None]:
    """Announce a phase, and put its name before what goes wrong in it."""
    context.progress.phase(name, detail)
    try:
        yield
    except (PhaseFailed, HarnessError) as error:
        raise PhaseFailed(f"{name}: {error}") from None


async def warm_up(context: RunContext, run: ArmRun) -> None:
    """Waves of short requests until two in a row agree in output tok/s, or max_rounds."""
    settings, workload = context.spec.warmup, context.spec.workload
    for round_index in range(settings.max_rounds):
        bodies = [
            context.facts.request(
                token_ids(
                    workload.content,
                    settings.prompt_tokens,
                    seed=context.spec.seed,
                    role=Role.WARMUP,
                    pair=run.pair,
                    index=round_index * workload.concurrency + stream,
                ),
                settings.output_tokens,
            )
            for stream in range(workload.concurrency)
        ]
        limits = context.spec.limits
        load = Load(bodies, workload.concurrency, limits.prime_s, limits.prime_s)
        records = new_records(load)
        await run_load(context.session, load, records)
        run.warm_tok_s.append(_warm_rate(records, workload.concurrency))
        run.warm_steady = _agree(run.warm_tok_s[-2:], settings.tolerance)
        if run.warm_steady and round_index + 1 >= settings.min_rounds:
            return


def _warm_rate(records: list[RequestRecord], concurrency: int) -> float:
    for record in records:
        if record.error is not None:
            raise PhaseFailed(record.error)
    named = windows(records, concurrency)
    window = named["full_batch"] or named["full_run"]
    rate = output_tok_s(records, window) if window else None
    if not rate:
        raise PhaseFailed("no tokens came back")
    return rate


def _agree(rates: list[float], tolerance: float) -> bool:
    return len(rates) == 2 and abs(rates[1] - rates[0]) <= tolerance * max(rates)


async def prime(context: RunContext, pair: int) -> None:
    """Put every lane's context into the cache, one at a time; it must not have been there."""
    workload = context.spec.workload
    for lane in range(workload.lanes):
        body = context.facts.request(
            context_ids(context.spec, pair, lane), workload.prime_output_tokens
        )
        record = RequestRecord(index=lane, lane=lane)
        hits = await cache_hits(context.session, context.facts)
        await stream_completion(context.session, body, record, context.spec.limits.prime_s)
        settle_unreported(record, hits, await cache_hits(context.session, context.facts))
        _require(
            record,
            prompt_tokens=workload.cached_tokens,
            output_tokens=workload.prime_output_tokens,
            expected_cached=0,
        )


async def verify(context: RunContext, pair: int, expected_cached: int) -> None:
    """One token on top of every lane's context, with a suffix no measured request has."""
    workload = context.spec.workload
    for lane in range(workload.lanes):
        suffix = token_ids(
            workload.content,
            PROBE_TOKENS,
            seed=context.spec.seed,
            role=Role.PROBE,
            pair=pair,
            index=lane,
        )
        prompt = np.concatenate([context_ids(context.spec, pair, lane), suffix])
        record = RequestRecord(index=lane, lane=lane)
        body = context.facts.request(prompt, 1)
        await stream_completion(context.session, body, record, context.spec.limits.prime_s)
        _require(
            record,
            prompt_tokens=len(prompt),
            output_tokens=1,
            expected_cached=expected_cached,
        )


def _require(
    record: RequestRecord, *, prompt_tokens: int, output_tokens: int, expected_cached: int
) -> None:
    problems = request_problems(
        [record],
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        expected_cached=expected_cached,
    )
    if problems:
        raise PhaseFailed("; ".join(problems))


async def _load(context: RunContext, run: ArmRun) -> None:
    """Snapshot, load, snapshot."""
    spec = context.spec
    workload, limits = spec.workload, spec.limits
    context.progress.phase("load", f"{run.label}, {workload.request_count} requests")
    bodies = load_bodies(spec, context.facts.model, run.pair, context.facts.wire)
    before = await read_spin(context.session)
    load = Load(bodies, workload.concurrency, limits.stall_s, limits.load_s, workload.lanes)
    shown = LoadProgress(workload.request_count * workload.output_tokens)
    run.records = new_records(load)
    metrics = metric_map(context.facts.kind, spec.metrics)
    async with observing(context.session, metrics, run):
        async with _displaying(context.progress, shown):
            await run_load(context.session, load, run.records, shown)
        after = await wait_idle(context.session, limits.idle_s)
    if after is not None and before is not None:
        run.spin = after.since(before)
    elif (after is None) != (before is None):
        raise CounterError("the spin block appeared or vanished during the load")
    run.problems += proof_problems(run.telemetry, run.records, run.window(spec), metrics)


@asynccontextmanager
async def _displaying(progress: Progress, shown: LoadProgress) -> AsyncIterator[None]:
    """Show the load's totals a few times a second while the block runs."""

    async def repeat() -> None:
        known = 0
        while True:
            await asyncio.sleep(DISPLAY_S)
            rate = (shown.tokens - known) / DISPLAY_S
            known = shown.tokens
            progress.load(known, shown.expected_tokens, rate, shown.running)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
