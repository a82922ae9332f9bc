"""The mock's `/metrics` page, under SGLang's or vLLM's names."""

from harness.mock_script import MockState


def metrics_page(state: MockState) -> str:
    """Prometheus text of what the mock remembers."""
    lines = _vllm(state) if state.script.dialect == "vllm" else _sglang(state)
    return "\n".join(lines) + "\n"


def _sglang(state: MockState) -> list[str]:
    labels = 'model_name="mock",tp_rank="0"'
    by_stream = labels + ',is_streaming="true"'
    lines = [
        *_series("counter", "sglang:prompt_tokens_total", by_stream, state.prompt_tokens),
        *_series("counter", "sglang:generation_tokens_total", by_stream, state.output_tokens),
        *_series("gauge", "sglang:num_running_reqs", labels, state.running),
        *_series("gauge", "sglang:num_queue_reqs", labels, state.waiting),
        *_series("counter", "sglang:num_retracted_requests_total", labels, state.retracted),
    ]
    # like the real server, which makes these series when they first have something to count
    if state.cached_tokens:
        by_source = labels + ',cache_source="device"'
        lines += _series("counter", "sglang:cached_tokens_total", by_source, state.cached_tokens)
    if state.evicted:
        lines += _series("counter", "sglang:evicted_tokens_total", labels, state.evicted)
    return lines + _spin(state)


def _spin(state: MockState) -> list[str]:
    """SPIN's own series, by layer."""
    if state.script.spin_target < 0 or not state.seen_blocks:
        return []
    share = state.kept_blocks / state.seen_blocks
    lines = ["# TYPE sglang_spin:kept_share gauge"]
    lines += [
        f'sglang_spin:kept_share{{layer="{layer}",tp_rank="0"}} {share}'
        for layer in range(state.script.layers)
    ]
    return lines


def _vllm(state: MockState) -> list[str]:
    labels, script = 'engine="0",model_name="mock"', state.script
    config = (
        f'block_size="{script.page_size}",num_gpu_blocks="{script.capacity // script.page_size}"'
    )
    return [
        *_series("gauge", "vllm:cache_config_info", config, 1),
        *_series("counter", "vllm:prompt_tokens_total", labels, state.prompt_tokens),
        *_series("counter", "vllm:generation_tokens_total", labels, state.output_tokens),
        *_series("counter", "vllm:prefix_cache_queries_total", labels, state.queried_tokens),
        *_series("counter", "vllm:prefix_cache_hits_total", labels, state.cached_tokens),
        *_series("gauge", "vllm:num_requests_running", labels, state.running),
        *_series("gauge", "vllm:num_requests_waiting", labels, state.waiting),
        *_series("counter", "vllm:num_preemptions_total", labels, state.retracted),
    ]


def _series(kind: str, name: str, labels: str, value: float) -> list[str]:
    return [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"]
