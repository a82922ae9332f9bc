"""`telemetry.parquet`: everything that servers and GPUs said during the loads, a row a reading."""

from collections.abc import Iterator, Sequence

import orjson
import pyarrow

from harness.runrecord import ArmRun
from harness.table import as_parquet

SCHEMA = pyarrow.schema(
    [
        ("arm", pyarrow.string()),
        ("pair", pyarrow.int32()),
        ("t_ns", pyarrow.int64()),
        ("series", pyarrow.string()),
        ("labels", pyarrow.string()),
        ("value", pyarrow.float64()),
    ]
)


def telemetry_parquet(runs: Sequence[ArmRun]) -> bytes:
    """All series of all runs, on the clock of requests.parquet; labels are JSON.

    A series that a page lacked has a null there.
    """
    tables = [table for run in runs for table in _tables(run)]
    table = pyarrow.concat_tables(tables) if tables else SCHEMA.empty_table()
    return as_parquet(table)


def _tables(run: ArmRun) -> Iterator[pyarrow.Table]:
    for telemetry in (run.telemetry, run.gpus):
        readings = len(telemetry.t_ns)
        for (name, labels), values in telemetry.series.items():
            columns = [
                [run.arm] * readings,
                [run.pair] * readings,
                list(telemetry.t_ns),
                [name] * readings,
                [orjson.dumps(dict(labels)).decode()] * readings,
                pyarrow.array(values, pyarrow.float64(), from_pandas=True),
            ]
            yield pyarrow.table(columns, schema=SCHEMA)
