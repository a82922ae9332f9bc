"""Bringing a server to its steady rate before anything is measured."""

from harness.drive import Load, new_records, run_load
from harness.metrics import output_tok_s
from harness.prompts import Role, token_ids
from harness.record import RequestRecord
from harness.runcontext import PhaseFailed, RunContext
from harness.runrecord import ArmRun


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
        run.warm_tok_s.append(_warm_rate(records))
        run.warm_steady = _agree(run.warm_tok_s[-2:], settings.tolerance)
        if run.warm_steady and round_index + 1 >= settings.min_rounds:
            return


def _warm_rate(records: list[RequestRecord]) -> float:
    """Tok/s from the wave's first token to its last."""
    for record in records:
        if record.error is not None:
            raise PhaseFailed(record.error)
    # not the full batch: of answers this short it can be a single step, and its rate anything
    answered = [record for record in records if record.chunk_t_ns]
    span = (
        min((record.chunk_t_ns[0] for record in answered), default=0),
        max((record.chunk_t_ns[-1] for record in answered), default=0),
    )
    rate = output_tok_s(answered, span)
    if not rate:
        raise PhaseFailed("no tokens came back")
    return rate


def _agree(rates: list[float], tolerance: float) -> bool:
    return len(rates) == 2 and abs(rates[1] - rates[0]) <= tolerance * max(rates)
