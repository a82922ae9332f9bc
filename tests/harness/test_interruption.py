"""`harness run` that is stopped in the middle of a load: by Ctrl-C, a signal, or a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.helpers import processes_with, read_summary, write_spec


def start_slow_campaign(
    folder: Path, mark: str, phase: str = "load", options: str = "--itl-ms 100"
) -> "subprocess.Popen[str]":
    """A campaign in a process of its own, in the middle of this phase, which its mocks draw out."""
    slow = f"{options} --spin-policy {mark}"
    spec = write_spec(folder, stock=slow, spin=slow, workload={"output_tokens": 2000})
    command = [sys.executable, "-m", "harness", "run", str(spec)]
    process = subprocess.Popen(
        [*command, "--results", str(folder / "results")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while f"] {phase} " not in process.stdout.readline():
        assert process.poll() is None
    # the requests are on their way
    time.sleep(0.5)
    assert processes_with(mark)
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


@pytest.mark.parametrize(
    ("phase", "options"),
    [
        ("start", "--start-delay-ms 60000"),
        ("flush", "--flush refuses"),
        ("prime", "--ttft-ms 2000 --itl-ms 1"),
    ],
)
def test_interrupted_in_every_phase(tmp_path: Path, phase: str, options: str) -> None:
    """Ctrl-C before the load does the same, also while a server is starting."""
    mark = f"mark-{os.getpid()}-{phase}"
    process = start_slow_campaign(tmp_path, mark, phase, options)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "INVALID: interrupted; `harness resume` goes on" in out
    assert processes_with(mark) == []
    assert read_summary(tmp_path)["valid"] is False


def test_killed_campaign_leaves_no_server(tmp_path: Path) -> None:
    """Even SIGKILL of the harness, which it cannot see, ends its servers."""
    mark = f"mark-{os.getpid()}-kill"
    process = start_slow_campaign(tmp_path, mark)
    process.kill()
    process.communicate()
    assert none_left(mark)
