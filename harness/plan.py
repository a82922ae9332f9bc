"""`--dry-run`: what a campaign would do and need, without starting anything."""

from harness.prompts import request_ids
from harness.spec import Spec
from harness.spec_workload import ContextWork, TraceWork
from harness.stats import interleaved_order
from harness.wall import expected_wall_s
from harness.wire import completion_body
from harness.work import asks_of, longest_request, resident_tokens, start_times

MB = 1e6
MINUTE_S = 60
_LOAD_PHASES = "quiesce, load, validate"


def describe_plan(spec: Spec) -> str:
    """Phases, order, tokens, KV need against capacity, body bytes, expected wall time."""
    order = interleaved_order(list(spec.arms), spec.pairs, spec.seed)
    runs = spec.pairs * len(spec.arms)
    work = spec.workload
    lines = [
        f"{spec.name}: {spec.pairs} pairs x {len(spec.arms)} arms = {runs} runs; "
        f"servers: {spec.servers}",
        *(f"  arm {name}: {arm.base_url or arm.command}" for name, arm in spec.arms.items()),
        *(f"  pair {pair + 1}: {', '.join(arms)}" for pair, arms in enumerate(order)),
        *_gate_lines(spec),
        _phases(spec),
        *(_context_lines(work) if isinstance(work, ContextWork) else _trace_lines(spec, work)),
        *_load_lines(spec),
        f"  KV need  {_kv_need(spec)}",
        _body_line(spec),
        f"  time     {_wall(spec)}",
    ]
    return "\n".join(lines)


def _gate_lines(spec: Spec) -> list[str]:
    if spec.gate is None:
        return []
    margins = ", ".join(
        f"{metric} {margin:.1%}"
        for metric, margin in spec.gate.margins.model_dump().items()
        if margin is not None
    )
    parts = [f"margins {margins}"]
    if spec.most_pairs > spec.pairs:
        parts.append(f"up to {spec.most_pairs} pairs while inconclusive")
    if spec.gate.parity_floor is not None:
        parts.append(f"parity floor {spec.gate.parity_floor:g}")
    return [f"  gate     {'; '.join(parts)}"]


def _phases(spec: Spec) -> str:
    work = spec.workload
    if isinstance(work, TraceWork):
        return f"each run: flush, warm up, flush, {_LOAD_PHASES}"
    primed = f"flush, warm up, flush, prime, verify, {_LOAD_PHASES}"
    if work.prime == "each-run":
        return f"each run: {primed}"
    return f"an arm's first run: {primed}; later runs: warm up, verify, {_LOAD_PHASES}"


def _context_lines(work: ContextWork) -> list[str]:
    primed = work.lanes * work.cached_tokens
    turns = f", {work.turns} turns" if work.turns > 1 else ""
    answers = f" + {work.recorded_tokens:,} recorded" if work.turns > 1 else ""
    return [
        f"  prime    contexts: {work.lanes} ({work.sharing}), {primed:,} tokens",
        f"  load     {work.request_count} conversations{turns}, {work.concurrency} in flight, "
        f"{work.cached_tokens:,} cached + {work.new_tokens:,} new{answers} tokens each",
    ]


def _trace_lines(spec: Spec, work: TraceWork) -> list[str]:
    asks = asks_of(spec)
    prompts = sum(ask.prompt_tokens for ask in asks)
    bound = sum(ask.at_most_cached or 0 for ask in asks)
    return [
        f"  load     {len(asks)} requests of {work.path}, {work.concurrency} in flight at most",
        f"  prompts  {prompts:,} tokens a run, of which at most {bound:,} can be cached",
    ]


def _load_lines(spec: Spec) -> list[str]:
    asks, runs = asks_of(spec), spec.pairs * len(spec.arms)
    generated = sum(ask.output_tokens for ask in asks)
    lines = [
        f"  output   {len(asks)} answers, {generated:,} tokens a run, {generated * runs:,} in all",
        f"  longest  {longest_request(spec):,} tokens",
    ]
    due_s = start_times(spec, pair=0)
    if due_s is not None:
        lines.append(
            f"  arrival  {spec.workload.arrival.kind}, the last starts at {due_s[-1]:.1f} s"
        )
    return lines


def _kv_need(spec: Spec) -> str:
    need, capacity = resident_tokens(spec), spec.requires.kv_tokens
    if need is None:
        return "not bounded: a trace's contexts may come and go"
    if not capacity:
        return f"{need:,} entries; what a server holds is asked when it is up (requires.kv_tokens)"
    word = "fits into" if need <= capacity else "DOES NOT FIT into"
    return f"{need:,} entries, {word} {capacity:,} (requires.kv_tokens)"


def _body_line(spec: Spec) -> str:
    asks = asks_of(spec)
    longest = max(asks, key=lambda ask: ask.prompt_tokens)
    body = completion_body("model", request_ids(spec, 0, longest.index), longest.output_tokens)
    # ids take the same bytes on average, so the rest follows from the lengths
    whole = len(body) * sum(ask.prompt_tokens for ask in asks) / longest.prompt_tokens
    return f"  bodies   {len(body) / MB:.2f} MB the longest, {whole / MB:.1f} MB a run"


def _wall(spec: Spec) -> str:
    wall_s = expected_wall_s(spec)
    if wall_s is None:
        return "not known, `expect` in the spec would tell"
    minutes = wall_s / MINUTE_S
    shown = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    return f"about {shown}, from `expect`"
