"""The same figures for spreadsheets: one row per run, one row per request."""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from harness import metrics
from harness.metrics import NS_PER_MS
from harness.runrecord import ArmRun

_RUN_SCALARS = (
    "pair", "arm", "position", "output_tok_s", "window_s", "warm_steady", "tokens_per_chunk",
    "repetition_ratio", "cached_tokens", "prompt_tokens",
)  # fmt: skip
_RUN_PERCENTILES = (
    "itl_ms", "itl_chunk_ms", "itl_arrival_ms", "itl_request_mean_ms", "tpot_ms", "ttft_ms",
    "e2e_ms",
)  # fmt: skip


def runs_csv(summary: Mapping[str, Any]) -> str:
    """Figures of every run. Pairs and positions count from 1; empty cells are not measured."""
    rows = []
    for run in summary["runs"]:
        row = {name: run[name] for name in _RUN_SCALARS}
        row |= {"pair": run["pair"] + 1, "position": run["position"] + 1}
        for name in _RUN_PERCENTILES:
            row |= {f"{name}_{q}": value for q, value in run[name].items()}
        row |= {f"output_tok_s_{w}": v for w, v in run["output_tok_s_by_window"].items()}
        row["goodput_req_s"] = (run["goodput"] or {}).get("req_s")
        row["realised_sparsity"] = (run["spin"] or {}).get("realised_sparsity")
        row["problems"] = "; ".join(run["problems"])
        rows.append(row)
    return _csv(rows)


def requests_csv(runs: Sequence[ArmRun]) -> str:
    """Latencies of every request in ms; chunk times and texts are in requests.parquet."""
    rows = [
        {
            "pair": run.pair + 1,
            "arm": run.arm,
            "request": record.index,
            "lane": record.lane,
            "turn": record.turn,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "completion_tokens": record.completion_tokens,
            "queue_ms": _ms(metrics.queue_ns(record) if record.sent_ns else None),
            "ttft_ms": _ms(metrics.ttft_ns(record)),
            "itl_mean_ms": _ms(metrics.itl_request_mean_ns(record)),
            "tpot_ms": _ms(metrics.tpot_ns(record)),
            "e2e_ms": _ms(metrics.e2e_ns(record)),
            "error": record.error,
        }
        for run in runs
        for record in run.records
    ]
    return _csv(rows)


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else round(value_ns / NS_PER_MS, 6)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()
