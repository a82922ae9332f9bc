"""`harness run` as a whole, against mock servers in processes of their own."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.command import RunCommand, execute
from harness.errors import PreflightError
from harness.progress import Progress
from tests.harness.helpers import write_spec


def run(folder: Path, **changes: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, summary and output of a campaign in this process."""
    out = io.StringIO()
    command = RunCommand(write_spec(folder, **changes), results=folder / "results")
    code = execute(command, Progress(out))
    return code, read_summary(folder), out.getvalue()


def read_summary(folder: Path) -> dict[str, Any]:
    """The newest summary."""
    text = (folder / "results" / "test" / "latest" / "summary.json").read_text()
    summary: dict[str, Any] = json.loads(text)
    return summary


def processes_with(mark: str) -> list[int]:
    """Processes whose command line holds the mark."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_valid_campaign(tmp_path: Path) -> None:
    """Two pairs over two sound servers: exit 0, all files, the known ratio, nothing left."""
    mark = f"mark-{os.getpid()}-valid"
    code, summary, out = run(
        tmp_path, pairs=2, stock=f"--spin-policy {mark}", spin="--itl-ms 2 --diverge-at 6"
    )
    assert summary["invalid_reasons"] == []
    assert code == 0
    folder = tmp_path / "results" / "test" / "latest"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "requests.parquet", "spec.yaml", "env.json", "summary.json", "report.html",
        "throughput.png", "itl.png", "kept_share.png", "servers", "runs", "runs.csv",
        "requests.csv", "summary.md",
    }  # fmt: skip
    assert summary["arms"]["spin"]["spin"]["realised_sparsity"] == pytest.approx(0.4, abs=0.01)
    # 4 ms against 2 ms a token; wide, because the machine may be busy
    assert 1.2 < summary["ratio"]["output_tok_s"]["estimate"] < 3
    parity = summary["parity"]["spin"]
    assert (parity["compared"], parity["equal_share"], parity["equal_prefix_share"]) == (4, 0, 0.5)
    assert "load" in out
    assert json.loads((folder / "env.json").read_text())["servers"]["spin"]["page_size"] == 64
    assert processes_with(mark) == []


def test_t13_primed_once_and_verified_every_time(tmp_path: Path) -> None:
    """One priming an arm: later runs neither flush nor prime, and find the context exactly."""
    workload = {"prime": "once"}
    code, summary, out = run(tmp_path, pairs=3, workload=workload)
    assert summary["invalid_reasons"] == []
    assert code == 0
    assert out.count(" prime ") == 2
    assert out.count(" verify ") == 6
    assert [entry["primed"] for entry in summary["runs"]].count(True) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spin": "--spin-target -1"}, "arm spin: /server_info has no spin block"),
        ({"stock": "--spin-target 0.4"}, "arm stock: the server runs SPIN"),
        ({"spin": "--spin-realised 0.3"}, "pair 1 spin: spin: realised sparsity 0.3"),
        ({"stock": "--cached 128"}, "prime: cached_tokens: 1 of 1 requests"),
        ({"spin": "--fault early-stop"}, "failed: 2 of 2 requests"),
        ({"spin": "--usage final"}, "itl_basis: the arms count tokens differently"),
        ({"spin": "--capacity 100"}, "preflight: arm spin: the workload needs 345 KV entries"),
        ({"spin": "--fault die"}, "pair 1 spin: the server ended"),
        (
            {"stock": "--refuse 'needs a GPU'"},
            "preflight: server of arm stock ended at start: error: needs a GPU",
        ),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_invalid_campaigns(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    """What is not the spec exits 2 with a summary that says why."""
    code, summary, out = run(tmp_path, **changes)
    assert code == 2
    assert summary["valid"] is False
    assert any(words in reason for reason in summary["invalid_reasons"]), summary["invalid_reasons"]
    assert words in out


def test_servers_in_turn(tmp_path: Path) -> None:
    """With servers: swap only one arm is up at a time, and the result is the same kind."""
    code, summary, out = run(tmp_path, servers="swap")
    assert (code, summary["invalid_reasons"]) == (0, [])
    starts = [line for line in out.splitlines() if " start " in line]
    loads = [line for line in out.splitlines() if " load  " in line and "pair" in line]
    assert len(starts) == len(loads) == 2
    assert out.index(loads[0]) < out.index(starts[1])


def test_machine_without_the_gpus(tmp_path: Path) -> None:
    """A machine that lacks what the spec requires is refused before anything starts."""
    with pytest.raises(PreflightError, match="test needs 512 GPUs of at least 1 GiB"):
        run(tmp_path, requires={"gpus": 512, "gpu_memory_gib": 1})
    assert not (tmp_path / "results").exists()


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


def test_command_line_errors(tmp_path: Path) -> None:
    """A bad spec is one line on stderr and exit 2; --dry-run prints the plan and starts nothing."""
    spec = write_spec(tmp_path)
    command = [sys.executable, "-m", "harness", "run", str(spec), "--results", str(tmp_path / "r")]
    bad = subprocess.run([*command, "--set", "pairz=1"], capture_output=True, text=True)
    assert bad.returncode == 2
    assert bad.stderr == f"harness: {spec}: pairz: unknown key, remove it or correct its spelling\n"
    dry = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert "KV need  345 entries" in dry.stdout
    assert not (tmp_path / "r").exists()
