"""One run, phase by phase: flush, warm up, flush, prime, verify, quiesce, load, validate."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import numpy as np

from harness.client import LoadProgress, stream_completion
from harness.control import cache_hits, flush, read_spin, settle_unreported, wait_idle
from harness.counters import CounterError
from harness.drive import Load, run_load
from harness.errors import HarnessError
from harness.metric_map import MetricMap, metric_map
from harness.metrics import Window
from harness.observe import observing
from harness.progress import Progress
from harness.prompts import Role, context_ids, context_work, load_bodies, token_ids
from harness.proof import proof_problems
from harness.record import RequestRecord
from harness.runcontext import PhaseFailed, RunContext
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.spec_arrival import Closed
from harness.spec_workload import ContextWork, TraceWork
from harness.validity import request_problems, run_problems
from harness.warmup import warm_up
from harness.work import asks_of, chains_of, start_times

PROBE_TOKENS = 16
DISPLAY_S = 0.5


async def run_arm(context: RunContext, run: ArmRun) -> None:
    """Do all phases and fill `run`; what went wrong is in `run.problems`."""
    work = context.spec.workload
    run.page_size = context.facts.page_size
    if isinstance(work, ContextWork):
        run.expected_cached = context.facts.expected_cached(work.cached_tokens)
    try:
        await _prepare(context, run)
        await _load(context, run)
    except (PhaseFailed, CounterError, HarnessError) as error:
        run.problems.append(str(error))
    else:
        run.problems += run_problems(run, context.spec)


async def _prepare(context: RunContext, run: ArmRun) -> None:
    limits = context.spec.limits
    if not context.still_primed:
        with _phase(context, "flush", run.label):
            await flush(context.session, limits.flush_s)
    with _phase(context, "warm up", run.label):
        await warm_up(context, run)
    if not context.still_primed:
        with _phase(context, "flush", "what the warm-up left"):
            await flush(context.session, limits.flush_s)
            run.flushed = True
    if isinstance(context.spec.workload, ContextWork):
        await _prime_and_verify(context, run, context.spec.workload)
    with _phase(context, "quiesce"):
        await wait_idle(context.session, limits.idle_s)


async def _prime_and_verify(context: RunContext, run: ArmRun, work: ContextWork) -> None:
    if not context.still_primed:
        with _phase(context, "prime", f"{work.lanes} context(s)"):
            await prime(context, run.pair)
            run.primed = True
    with _phase(context, "verify", f"expecting {run.expected_cached} cached tokens"):
        await verify(context, run.pair, run.expected_cached)


@contextmanager
def _phase(context: RunContext, name: str, detail: str = "") -> Iterator[None]:
    """Announce a phase, and put its name before what goes wrong in it."""
    context.progress.phase(name, detail)
    try:
        yield
    except (PhaseFailed, HarnessError) as error:
        raise PhaseFailed(f"{name}: {error}") from None


async def prime(context: RunContext, pair: int) -> None:
    """Put every lane's context into the cache, one at a time; it must not have been there."""
    workload = context_work(context.spec)
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
    workload = context_work(context.spec)
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
    asks, limits = asks_of(spec), spec.limits
    context.progress.phase("load", f"{run.label}, {len(asks)} requests")
    bodies = load_bodies(spec, context.facts.model, run.pair, context.facts.wire)
    before = await read_spin(context.session)
    load = _planned_load(spec, run.pair, bodies)
    shown = LoadProgress(sum(ask.output_tokens for ask in asks))
    run.records = [RequestRecord(index=a.index, lane=a.lane, turn=a.turn) for a in asks]
    metrics = metric_map(context.facts.kind, spec.metrics)
    async with observing(context.session, metrics, run):
        async with _displaying(context.progress, shown):
            await run_load(context.session, load, run.records, shown)
        after = await wait_idle(context.session, limits.idle_s)
    if after is not None and before is not None:
        run.spin = after.since(before)
    elif (after is None) != (before is None):
        raise CounterError("the spin block appeared or vanished during the load")
    run.problems += proof_problems(
        run.telemetry, run.records, _quiet_window(spec, run), _undisturbed(spec, metrics)
    )


def _quiet_window(spec: Spec, run: ArmRun) -> Window | None:
    """Where nothing may queue: a full batch. Open loops, later turns and bursts wait by nature."""
    return run.window(spec) if spec.window == "full_batch" else None


def _undisturbed(spec: Spec, metrics: MetricMap) -> MetricMap:
    """What may not happen during the load: contexts of a trace come and go, others must stay."""
    return replace(metrics, evicted="") if isinstance(spec.workload, TraceWork) else metrics


def _planned_load(spec: Spec, pair: int, bodies: list[bytes]) -> Load:
    work, arrival = spec.workload, spec.workload.arrival
    return Load(
        bodies,
        work.concurrency,
        spec.limits.stall_s,
        spec.limits.load_s,
        chains=chains_of(asks_of(spec)),
        due_s=start_times(spec, pair),
        ramp_s=arrival.ramp_s if isinstance(arrival, Closed) else 0.0,
        think_s=work.think_s if isinstance(work, ContextWork) else 0.0,
    )


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
