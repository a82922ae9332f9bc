"""How long a campaign will take, from rates that somebody measured before (`expect`)."""

from harness.spec import Expect, Spec
from harness.spec_workload import ContextWork
from harness.work import asks_of, start_times


def expected_wall_s(spec: Spec) -> float | None:
    """Seconds for the spec's `pairs`; None without `expect`. A rough sum: phases overlap a little.

    starts + runs x (warm-up + prime + load), each prompt token that is not cached at prefill_tok_s,
    each output token at output_tok_s.
    """
    if spec.expect is None:
        return None
    runs = spec.pairs * len(spec.arms)
    starts = runs if spec.servers == "swap" else len(spec.arms)
    primings = len(spec.arms) if _once(spec) else runs
    return (
        starts * spec.expect.start_s
        + primings * _prime_s(spec, spec.expect)
        + runs * (_warmup_s(spec, spec.expect) + _load_s(spec, spec.expect))
    )


def _once(spec: Spec) -> bool:
    return isinstance(spec.workload, ContextWork) and spec.workload.prime == "once"


def _prime_s(spec: Spec, expect: Expect) -> float:
    work = spec.workload
    if not isinstance(work, ContextWork):
        return 0.0
    # one context at a time: a single stream decodes at no more than its share of the full rate
    single = expect.output_tok_s / work.concurrency
    return work.lanes * (
        work.cached_tokens / expect.prefill_tok_s + work.prime_output_tokens / single
    )


def _warmup_s(spec: Spec, expect: Expect) -> float:
    probe, streams = spec.warmup, spec.workload.concurrency
    once = streams * (
        probe.prompt_tokens / expect.prefill_tok_s + probe.output_tokens / expect.output_tok_s
    )
    return probe.min_rounds * once


def _load_s(spec: Spec, expect: Expect) -> float:
    work, asks = spec.workload, asks_of(spec)
    if isinstance(work, ContextWork):
        # later turns also bring the recorded answer
        fresh = work.request_count * work.tail_tokens(work.turns - 1)
        thinking = work.think_s * (work.turns - 1) * work.request_count / work.concurrency
    else:
        fresh = sum(ask.prompt_tokens - (ask.at_most_cached or 0) for ask in asks)
        thinking = 0.0
    busy = (
        fresh / expect.prefill_tok_s
        + sum(ask.output_tokens for ask in asks) / expect.output_tok_s
        + thinking
    )
    due_s = start_times(spec, pair=0)
    return busy if due_s is None else max(busy, due_s[-1])
