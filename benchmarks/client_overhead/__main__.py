"""`python -m benchmarks.client_overhead`: what a client of so many streams costs, side by side.

All clients run one after the other on servers that do the same; a client keeps up while its median
inter-token latency is within a tenth of the server's beat and none of its requests failed. Where
the server itself was late by half a beat, the machine was too busy to tell.
"""

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.client_overhead.clients import Case, available
from benchmarks.client_overhead.measure import run_case

CASES = (
    Case(96, 200, 30),
    Case(96, 1500, 4),
    Case(1000, 16, 500),
    Case(5000, 16, 500),
    Case(5000, 24, 250),
)
TOLERANCE = 0.1
SERVER_LATE = 0.5
QUICK = (Case(96, 200, 30), Case(1000, 12, 500))


def verdict(row: dict[str, Any]) -> str:
    """Whether the client saw the server's beat, all streams at once; undecided if that was late."""
    if "error" in row:
        return "failed"
    if row["server_late_p99_ms"] > SERVER_LATE * row["itl_ms"]:
        return "undecided"
    median = row.get("itl_p50_ms")
    complete = (
        not row.get("failed")
        and row.get("completed", row["streams"]) == row["streams"]
        and row["streams_at_once"] == row["streams"]
    )
    if complete and median is not None and abs(median / row["itl_ms"] - 1) <= TOLERANCE:
        return "kept up"
    return "fell behind"


def gave_up(rows: list[dict[str, Any]], client: str, streams: int) -> bool:
    """Has the client already failed with as many streams? It is not asked again."""
    return any(
        row["client"] == client and row["verdict"] == "failed" and row["streams"] <= streams
        for row in rows
    )


def ceilings(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Per client, the most events a second and the most streams of the cases it kept up with."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        best = found.setdefault(row["client"], {"events_per_s": 0, "streams": 0})
        if row["verdict"] == "kept up":
            best["events_per_s"] = max(best["events_per_s"], row["offered_events_s"])
            best["streams"] = max(best["streams"], row["streams"])
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("aiohttp", "uvloop", "orjson", "sglang")},
    }


def main() -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiperf", help="the aiperf program, of an environment of its own")
    parser.add_argument("--sglang-path", help="folders, joined by `:`, that SGLang's client needs")
    parser.add_argument("--aiperf-version", default="", help="noted beside the figures")
    parser.add_argument("--quick", action="store_true", help="two cases instead of five")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    clients, missing = available(options.aiperf, options.sglang_path)
    about = machine() | {"aiperf": options.aiperf_version}
    rows: list[dict[str, Any]] = []
    print(
        f"{'client':8} {'streams':>7} {'events/s':>8} {'cores':>6} {'ITL p50':>8} {'p99':>8}  beat"
    )
    for case in QUICK if options.quick else CASES:
        for client in clients:
            if gave_up(rows, client.name, case.streams):
                continue
            row = run_case(client, case)
            row["verdict"] = verdict(row)
            rows.append(row)
            print(_line(row), flush=True)
            # a run that is cut short keeps what it has
            document = {"schema": 1, "machine": about, "rows": rows, "ceilings": ceilings(rows)}
            if options.json:
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    for line in missing:
        print(f"left out: {line}")
    print(json.dumps(ceilings(rows)))
    return 0


def _line(row: dict[str, Any]) -> str:
    def shown(name: str) -> str:
        value = row.get(name)
        return "-" if value is None else f"{value:.2f}"

    state = row.get("error") or row["verdict"]
    return (
        f"{row['client']:8} {row['streams']:7} {row['offered_events_s']:8} "
        f"{shown('cpu_cores'):>6} {shown('itl_p50_ms'):>8} {shown('itl_p99_ms'):>8}  "
        f"{row['itl_ms']:g} ms, {state} (server late p99 {row['server_late_p99_ms']} ms)"
    )


if __name__ == "__main__":
    sys.exit(main())
