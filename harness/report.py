"""`report.html`: one file, no outside request, everything that came from a server escaped."""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from harness.checklist import checklist
from harness.markdown import not_shown

TEMPLATE = Path(__file__).with_name("report_template.html")
CAPTIONS = {
    "ratios.png": "Every pair is a dot, the diamond their geometric mean, the bar its 95 % "
    "t-interval. PASS needs the whole bar on the good side of the limit.",
    "throughput.png": "The bars of one pair were measured back to back, see the runs below.",
    "timeline.png": "Every run is a line.",
    "itl.png": "Per-token ITL inside the window, all runs; dotted: the median.",
    "itl_position.png": "Median per-token ITL by place in the answer.",
    "kept_share.png": "Over the loads of all runs. Dotted: what the target sparsity leaves. The "
    "miss is shown where the server exports it (sglang_spin:miss by layer).",
    "spin_time.png": "The last run of each arm. /metrics is read every half second; the server "
    "itself updates these gauges every few dozen decode steps, over the last minute.",
    "server.png": "Every run is a line, from the reading before the load to the one after it. "
    "SGLang sets its gauges every 40 decode steps, so they lag behind the tokens.",
}


def render_report(
    summary: Mapping[str, Any],
    spec_yaml: str,
    environment: Mapping[str, Any],
    plots: Mapping[str, bytes],
) -> str:
    """The whole page."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template.filters.update(number=_number, share=_share)
    images = {name: base64.b64encode(png).decode() for name, png in plots.items()}
    return template.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        summary=summary,
        spec_yaml=spec_yaml,
        env=environment,
        images=images,
        captions=CAPTIONS,
        checks=checklist(summary),
        machine=_machine(environment),
        not_shown=not_shown(summary),
        arm_rows=_arm_rows(summary),
    )


def _machine(environment: Mapping[str, Any]) -> str:
    """Where and when; empty where it is not known, as of a result that was never finished."""
    parts = []
    if environment.get("cpu"):
        parts.append(f"{environment['cpu']}, {environment.get('cores')} cores")
    gpus = environment.get("gpu_memory_mib") or []
    parts += [f"{len(gpus)} GPUs of {max(gpus) / 1024:.0f} GiB"] if gpus else []
    if (written := environment.get("written_unix_s")) is not None:
        parts.append(f"{datetime.fromtimestamp(written, UTC):%d %B %Y %H:%M} UTC")
    return "; ".join(parts)


def _arm_rows(summary: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The table of arms, a row for each figure; rows without any value are left out."""
    arms = list(summary["arms"].values())
    rows = [(title, [show(arm) for arm in arms]) for title, show in _FIGURES]
    return [(title, values) for title, values in rows if set(values) - {"n/a", ""}]


def _number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _of(*keys: str, digits: int = 2) -> Callable[[Mapping[str, Any]], str]:
    """A figure of an arm by its keys."""

    def show(arm: Mapping[str, Any]) -> str:
        value: Any = arm
        for key in keys:
            value = None if value is None else value[key]
        return _number(value, digits)

    return show


_FIGURES: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
    ("output tok/s, window of the spec", _of("output_tok_s", digits=1)),
    ("output tok/s, full-batch window", _of("output_tok_s_by_window", "full_batch", digits=1)),
    ("output tok/s, 0.95 window", _of("output_tok_s_by_window", "occupancy_95", digits=1)),
    ("output tok/s, full run", _of("output_tok_s_by_window", "full_run", digits=1)),
    ("ITL p50 ms, per token", _of("itl_ms", "p50")),
    ("ITL p99 ms, per token", _of("itl_ms", "p99")),
    ("ITL p50 ms, per chunk", _of("itl_chunk_ms", "p50")),
    ("ITL p50 ms, as received", _of("itl_arrival_ms", "p50")),
    ("ITL p50 ms, request means", _of("itl_request_mean_ms", "p50")),
    ("TPOT p50 ms", _of("tpot_ms", "p50")),
    ("TTFT p50 ms", _of("ttft_ms", "p50", digits=0)),
    ("E2E p50 ms", _of("e2e_ms", "p50", digits=0)),
    ("goodput, requests/s within the SLO", _of("goodput_req_s", digits=3)),
    ("tokens per chunk", _of("tokens_per_chunk")),
    ("distinct 4-grams in the answers", _of("repetition_ratio", digits=3)),
    ("requests ended as asked", lambda arm: f"{arm['requests']['ok']}/{arm['requests']['total']}"),
    ("cache as expected", lambda arm: "yes" if arm["cached_tokens_ok"] else "no"),
    ("sparsity, target", _of("spin", "target_sparsity")),
    ("sparsity, realised", _of("spin", "realised_sparsity", digits=3)),
]
