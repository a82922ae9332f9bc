"""`requests.parquet`: one row per request, raw times and counts, from which all figures follow."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pyarrow
import pyarrow.parquet

from harness.record import RequestRecord
from harness.runrecord import ArmRun

SCHEMA = pyarrow.schema(
    [
        ("arm", pyarrow.string()),
        ("pair", pyarrow.int32()),
        ("position", pyarrow.int32()),
        ("request", pyarrow.int32()),
        ("lane", pyarrow.int32()),
        ("turn", pyarrow.int32()),
        ("flushed", pyarrow.bool_()),
        ("primed", pyarrow.bool_()),
        ("expected_cached", pyarrow.int64()),
        ("cached_tokens", pyarrow.int64()),
        ("prompt_tokens", pyarrow.int64()),
        ("completion_tokens", pyarrow.int64()),
        ("finish_reason", pyarrow.string()),
        ("saw_done", pyarrow.bool_()),
        ("error", pyarrow.string()),
        ("itl_basis", pyarrow.string()),
        ("scheduled_ns", pyarrow.int64()),
        ("sent_ns", pyarrow.int64()),
        ("uploaded_ns", pyarrow.int64()),
        ("headers_ns", pyarrow.int64()),
        ("first_byte_ns", pyarrow.int64()),
        ("done_ns", pyarrow.int64()),
        ("chunk_t_ns", pyarrow.list_(pyarrow.int64())),
        ("chunk_tokens", pyarrow.list_(pyarrow.int32())),
        ("output_ids", pyarrow.list_(pyarrow.int32())),
        ("text", pyarrow.string()),
    ]
)


def requests_parquet(runs: Sequence[ArmRun]) -> bytes:
    """All requests of all runs as a parquet file."""
    rows = [_row(run, record) for run in runs for record in run.records]
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    return as_parquet(table)


def as_parquet(table: pyarrow.Table) -> bytes:
    """The table as a Parquet file."""
    out = BytesIO()
    pyarrow.parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def _row(run: ArmRun, record: RequestRecord) -> dict[str, Any]:
    return {
        "arm": run.arm,
        "pair": run.pair,
        "position": run.position,
        "request": record.index,
        "lane": record.lane,
        "turn": record.turn,
        "flushed": run.flushed,
        "primed": run.primed,
        "expected_cached": run.expected_cached,
        "cached_tokens": record.cached_tokens,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "finish_reason": record.finish_reason,
        "saw_done": record.saw_done,
        "error": record.error,
        "itl_basis": record.itl_basis,
        "scheduled_ns": record.scheduled_ns or None,
        "sent_ns": record.sent_ns or None,
        "uploaded_ns": record.uploaded_ns or None,
        "headers_ns": record.headers_ns or None,
        "first_byte_ns": record.first_byte_ns or None,
        "done_ns": record.done_ns or None,
        "chunk_t_ns": list(record.chunk_t_ns),
        "chunk_tokens": list(record.chunk_tokens),
        "output_ids": list(record.output_ids),
        "text": "".join(record.text),
    }
