"""Which series of a `/metrics` page mean what, per kind of server."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class MetricMap:
    """A regular expression for the whole name of a series, per meaning; empty: there is none.

    Counters prompt_tokens, output_tokens, cached_tokens, retracted, evicted are summed over their
    labels; so are the gauges running and queued. keep: what else is recorded, for the report.
    gauge_delay_s, gauge_delay_steps: how old a gauge may be when it is read, the longer of the two;
    SGLang sets them every 40 decode steps.
    """

    prompt_tokens: str = ""
    output_tokens: str = ""
    cached_tokens: str = ""
    retracted: str = ""
    evicted: str = ""
    running: str = ""
    queued: str = ""
    keep: str = ""
    gauge_delay_s: float = 0.0
    gauge_delay_steps: int = 0

    def patterns(self) -> dict[str, str]:
        """Meaning to expression, without those that are empty."""
        named = {name: getattr(self, name) for name in _MEANINGS}
        return {name: pattern for name, pattern in named.items() if pattern}

    def wants(self) -> Callable[[str], bool]:
        """Whether a series' name has a meaning here."""
        joined = re.compile("|".join(f"(?:{p})" for p in self.patterns().values()) or r"(?!)")
        return lambda name: joined.fullmatch(name) is not None


_MEANINGS = [item.name for item in fields(MetricMap) if not item.name.startswith("gauge_delay")]


def unknown_changes(changes: Mapping[str, str]) -> list[str]:
    """What is wrong with changes to a map: an unknown meaning, an expression that is none."""
    problems = []
    for name, pattern in changes.items():
        if name not in _MEANINGS:
            problems.append(f"metrics.{name}: unknown meaning, known are {', '.join(_MEANINGS)}")
            continue
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(f"metrics.{name}: not a regular expression, {error}")
    return problems


SGLANG = MetricMap(
    prompt_tokens="sglang:prompt_tokens_total",
    output_tokens="sglang:generation_tokens_total",
    cached_tokens="sglang:cached_tokens_total",
    retracted="sglang:num_retracted_requests_total",
    evicted="sglang:evicted_tokens_total",
    running="sglang:num_running_reqs",
    queued="sglang:num_queue_reqs",
    keep=r"sglang_spin:.*|sglang:(token_usage|is_cuda_graph|spec_accept_length|gen_throughput"
    r"|cache_hit_rate|num_used_tokens)",
    gauge_delay_s=2.0,
    gauge_delay_steps=40,
)
VLLM = MetricMap(
    prompt_tokens="vllm:prompt_tokens_total",
    output_tokens="vllm:generation_tokens_total",
    cached_tokens="vllm:prefix_cache_hits_total",
    retracted="vllm:num_preemptions_total",
    running="vllm:num_requests_running",
    queued="vllm:num_requests_waiting",
    keep=r"vllm:(kv_cache_usage_perc|prefix_cache_queries_total"
    r"|spec_decode_num_(draft|accepted)_tokens_total)",
    gauge_delay_s=0.5,
)
METRIC_MAPS = {"sglang": SGLANG, "vllm": VLLM}


def metric_map(kind: str, changes: Mapping[str, str]) -> MetricMap:
    """The map of a kind of server with the spec's changes, which were checked with the spec."""
    return replace(METRIC_MAPS[kind], **changes)  # type: ignore[arg-type]
