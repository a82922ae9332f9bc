"""One client on one case: what it took, what it saw, and whether the server kept its beat."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.client_overhead.clients import Case, Client
from benchmarks.client_overhead.tree import cpu_seconds

POLL_S = 0.25
LIMIT_S = 75.0
ROOT = Path(__file__).parents[2]


def run_case(client: Client, case: Case) -> dict[str, Any]:
    """Figures of one client on a server of its own; `error` says why there are none."""
    with _firehose(case) as url, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = client.command(case, url, folder)
        output = folder / "output.txt"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **client.environment},
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        found: dict[str, Any] = {"client": client.name, "streams": case.streams}
        found |= {"offered_events_s": round(case.events_per_s), "itl_ms": case.itl_ms}
        cores, ended = _watch(process, url, case)
        stats = _stats(url)
        found["cpu_cores"] = cores
        found["server_late_p99_ms"] = round(stats["late_p99_ms"], 2)
        found["streams_at_once"] = stats["most"]
        text = output.read_text(errors="replace")
        if not ended:
            return found | {"error": f"not ended within {LIMIT_S:g} s"}
        try:
            return found | client.read(folder, text)
        except (OSError, KeyError, IndexError, ValueError):
            lines = [line for line in text.splitlines() if line.strip()]
            return found | {"error": lines[-1][:200] if lines else "no output"}


def _watch(process: "subprocess.Popen[bytes]", url: str, case: Case) -> tuple[float | None, bool]:
    """Cores used while all streams were open, and whether the client ended in time."""
    begin: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if _stats(url)["active"] == case.streams:
            last = (time.monotonic(), cpu_seconds(process.pid))
            begin = begin or last
        time.sleep(POLL_S)
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if begin is None or last is None or last[0] - begin[0] < 1:
        return None, ended
    return round((last[1] - begin[1]) / (last[0] - begin[0]), 3), ended


def _stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats", timeout=30) as answer:
        return dict(json.loads(answer.read()))


@contextmanager
def _firehose(case: Case) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    module = [sys.executable, "-m", "benchmarks.client_overhead.firehose", "--port", str(port)]
    options = ["--tokens", case.tokens, "--itl-ms", case.itl_ms, "--streams", case.streams]
    process = subprocess.Popen([*module, *map(str, options)], cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str) -> None:
    for _ in range(200):
        try:
            _stats(url)
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"the server of the benchmark does not answer at {url}")
