"""`harness run` that is stopped in the middle of a load: by Ctrl-C, a signal, or a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.helpers import processes_with, read_summary, write_spec


def start_slow_campaign(folder: Path, mark: str) -> "subprocess.Popen[str]":
    """A campaign in a process of its own, in the middle of its first load."""
    slow = f"--itl-ms 100 --spin-policy {mark}"
    spec = write_spec(folder, stock=slow, spin=slow, workload={"output_tokens": 2000})
    command = [sys.executable, "-m", "harness", "run", str(spec)]
    process = subprocess.Popen(
        [*command, "--results", str(folder / "results")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while "load" not in process.stdout.readline():
        assert process.poll() is None
    # the requests are on their way
    time.sleep(0.5)
    assert len(processes_with(mark)) >= 2
    return process


def none_left(mark: str, within_s: float = 30) -> bool:
    """Do all processes with the mark end in time?"""
    deadline = time.monotonic() + within_s
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not processes_with(mark)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_campaign(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM stop the servers, keep the partial records, and exit 130."""
    mark = f"mark-{os.getpid()}-{number.name}"
    process = start_slow_campaign(tmp_path, mark)
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "INVALID: interrupted" in out
    assert processes_with(mark) == []
    summary = read_summary(tmp_path)
    assert summary["valid"] is False
    assert summary["arms"]["stock"]["requests"] == {"ok": 0, "total": 2}
    assert summary["runs"][0]["ttft_ms"]["p50"] is not None


def test_killed_campaign_leaves_no_server(tmp_path: Path) -> None:
    """Even SIGKILL of the harness, which it cannot see, ends its servers."""
    mark = f"mark-{os.getpid()}-kill"
    process = start_slow_campaign(tmp_path, mark)
    process.kill()
    process.communicate()
    assert none_left(mark)
