"""`--dry-run`: what a campaign would do and need, without starting anything."""

from harness.prompts import completion_body, request_ids
from harness.spec import Spec
from harness.stats import interleaved_order

MB = 1e6
_PHASES = {
    "each-run": "each run: flush, warm up, flush, prime, verify, quiesce, load, validate",
    "once": "an arm's first run: flush, warm up, flush, prime, verify, quiesce, load, validate; "
    "later runs: warm up, verify, quiesce, load, validate",
}


def describe_plan(spec: Spec) -> str:
    """Phases, order, tokens, KV need and body bytes."""
    workload = spec.workload
    order = interleaved_order(list(spec.arms), spec.pairs, spec.seed)
    runs = spec.pairs * len(spec.arms)
    body = len(completion_body("model", request_ids(spec, 0, 0), workload.output_tokens))
    bodies = body * workload.request_count
    generated = workload.request_count * workload.output_tokens
    primed = workload.lanes * workload.cached_tokens
    lines = [
        f"{spec.name}: {spec.pairs} pairs x {len(spec.arms)} arms = {runs} runs; "
        f"servers: {spec.servers}",
        *(f"  arm {name}: {arm.command}" for name, arm in spec.arms.items()),
        *(f"  pair {pair + 1}: {', '.join(arms)}" for pair, arms in enumerate(order)),
        _PHASES[workload.prime],
        f"  prime    {workload.lanes} {workload.sharing} context(s), {primed:,} tokens",
        f"  load     {workload.request_count} requests, {workload.concurrency} in flight, "
        f"{workload.cached_tokens:,} cached + {workload.new_tokens:,} new tokens each",
        f"  output   {workload.output_tokens:,} tokens each, {generated:,} a run, "
        f"{generated * runs:,} in all",
        f"  KV need  {workload.resident_tokens():,} entries",
        f"  bodies   {body / MB:.2f} MB each, {bodies / MB:.1f} MB a run",
    ]
    return "\n".join(lines)
