"""The figures of one run, in the units a reader wants; None where there is nothing to measure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from harness import metrics
from harness.counters import SpinCounters
from harness.metrics import NS_PER_MS, NS_PER_S, Samples, Window
from harness.record import RequestRecord
from harness.runrecord import ArmRun, windows
from harness.spec import Spec
from harness.spec_gate import Slo
from harness.spin_series import MISS, per_layer

Figures = dict[str, Any]
PERCENTILES = (50, 90, 99)
POSITION_BINS = 32
# the figure whose median is compared, by the spec's `itl`
ITL_FIGURES = {
    "token": "itl_ms",
    "chunk": "itl_chunk_ms",
    "arrival": "itl_arrival_ms",
    "request_mean": "itl_request_mean_ms",
}


def run_figures(run: ArmRun, spec: Spec) -> Figures:
    """All figures of one run. Those without a window in their name count `spec.window` only."""
    records, concurrency = run.records, spec.workload.concurrency
    named = windows(records, concurrency)
    window = named[spec.window]
    return {
        "arm": run.arm,
        "pair": run.pair,
        "position": run.position,
        "problems": run.problems,
        "flushed": run.flushed,
        "primed": run.primed,
        "warm_tok_s": run.warm_tok_s,
        "warm_steady": run.warm_steady,
        "itl_basis": sorted({str(record.itl_basis) for record in records}),
        "window_s": (window[1] - window[0]) / NS_PER_S if window else None,
        "output_tok_s": metrics.output_tok_s(records, window) if window else None,
        "output_tok_s_by_window": {
            name: metrics.output_tok_s(records, span) if span else None
            for name, span in named.items()
        },
        "itl_ms": _over_gaps(records, metrics.itl_token_ns, window),
        "itl_full_run_ms": _over_gaps(records, metrics.itl_token_ns, named["full_run"]),
        "itl_chunk_ms": _over_gaps(records, metrics.itl_chunk_ns, window),
        "itl_arrival_ms": _over_gaps(records, metrics.itl_arrival_ns, window),
        "itl_request_mean_ms": _over_requests(map(metrics.itl_request_mean_ns, records)),
        "ttft_ms": _over_requests(map(metrics.ttft_ns, records)),
        "tpot_ms": _over_requests(map(metrics.tpot_ns, records)),
        "e2e_ms": _over_requests(map(metrics.e2e_ns, records)),
        "itl_by_position": _by_position(records),
        "tokens_per_chunk": _mean(map(metrics.tokens_per_chunk, records)),
        "repetition_ratio": _mean(metrics.repetition_ratio(r.output_ids) for r in records),
        "cached_tokens": sum(record.cached_tokens or 0 for record in records),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in records),
        "goodput": _goodput(records, spec.slo, named["full_run"]),
        "client": _client(run, window, concurrency),
        "spin": spin_figures(run.spin, per_layer(run.telemetry, MISS)),
    }


def _by_position(records: Sequence[RequestRecord]) -> list[Figures]:
    longest = max((record.streamed_tokens for record in records), default=0)
    if longest < 2:
        return []
    edges = np.unique(np.linspace(1, longest, min(POSITION_BINS, longest - 1) + 1).astype(int))
    return [
        {"from": one["from"], "to": one["to"], "p50_ms": one["p50_ns"] / NS_PER_MS}
        for one in metrics.itl_by_position(records, edges.tolist())
        if one["p50_ns"] is not None
    ]


def _goodput(
    records: Sequence[RequestRecord], slo: Slo | None, full_run: Window | None
) -> Figures | None:
    if slo is None:
        return None
    good = sum(metrics.meets_slo(record, **slo.model_dump()) for record in records)
    rate = metrics.goodput_req_s(good, full_run) if full_run else None
    return {"good": good, "total": len(records), "req_s": rate}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def spin_figures(spin: SpinCounters | None, miss: Sequence[float | None] | None) -> Figures | None:
    """Counters of a window with the shares that follow from them, and the miss of each layer."""
    if spin is None:
        return None
    figures = asdict(spin)
    del figures["kept_blocks"], figures["seen_blocks"]
    return {
        **figures,
        "realised_sparsity": spin.realised_sparsity,
        "kept_share": spin.kept_share,
        "miss_share": miss,
    }


def _over_gaps(
    records: Sequence[RequestRecord],
    metric: Callable[[RequestRecord, Window | None], Samples],
    window: Window | None,
) -> dict[str, float | None]:
    parts = [metric(record, window) for record in records] if window else []
    return _percentiles_ms(metrics.pooled(parts))


def _over_requests(values: Iterable[float | None]) -> dict[str, float | None]:
    return _percentiles_ms(np.array([value for value in values if value is not None], float))


def _percentiles_ms(samples_ns: Samples) -> dict[str, float | None]:
    return {f"p{q}": metrics.percentile(samples_ns / NS_PER_MS, q) for q in PERCENTILES}


def _client(run: ArmRun, window: Window | None, concurrency: int) -> dict[str, float | None]:
    lag = np.array(run.lag.within(*window) if window else [], float)
    sent = [record for record in run.records if record.sent_ns]
    uploads = [r.uploaded_ns - r.sent_ns for r in sent if r.uploaded_ns]
    return {
        "cpu_share": run.lag.cpu_share(*window) if window else None,
        "upload_ms_max": max(uploads) / NS_PER_MS if uploads else None,
        "loop_lag_ms_p99": metrics.percentile(lag / NS_PER_MS, 99),
        "loop_lag_ms_max": max(run.lag.lag_ns, default=0) / NS_PER_MS,
        "send_spread_ms": metrics.send_spread_ns(sent, concurrency) / NS_PER_MS,
        "queue_ms_max": max(
            (metrics.queue_ns(record) / NS_PER_MS for record in sent), default=None
        ),
    }
