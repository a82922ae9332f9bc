"""`harness run` as a whole, against mock servers in processes of their own."""

import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.command import RunCommand, execute
from harness.errors import ConfigError, PreflightError
from harness.ports import free_port
from harness.progress import Progress
from tests.harness.helpers import processes_with, read_summary, spec_dict, write_spec


def run(folder: Path, **changes: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, summary and output of a campaign in this process."""
    out = io.StringIO()
    command = RunCommand(write_spec(folder, **changes), results=folder / "results")
    code = execute(command, Progress(out))
    return code, read_summary(folder), out.getvalue()


def test_valid_campaign(tmp_path: Path) -> None:
    """Two pairs over two sound servers: exit 0, all files, the known ratio, nothing left."""
    mark = f"mark-{os.getpid()}-valid"
    code, summary, out = run(
        tmp_path, pairs=2, stock=f"--spin-policy {mark}", spin="--itl-ms 4 --diverge-at 6"
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
    # 8 ms against 4 ms a token; wide, because the machine may be busy
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
            "preflight: server of arm stock ended at start with status 1: error: needs a GPU",
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


def test_prompts_are_read_before_a_server_is_started(tmp_path: Path) -> None:
    """A file of prompts that is missing, or too short, is told before anything starts."""
    prompts = tmp_path / "prompts.jsonl"
    workload = {"content": {"kind": "file", "path": str(prompts)}}
    with pytest.raises(ConfigError, match="cannot be read"):
        run(tmp_path, workload=workload)
    prompts.write_text(json.dumps(list(range(288))) + "\n")
    with pytest.raises(ConfigError, match="has 1 prompts, the workload needs 2 or more"):
        run(tmp_path, workload=workload)
    assert not (tmp_path / "results").exists()


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


@pytest.mark.slow
def test_doctored_arm_fails_and_the_same_server_does_not(tmp_path: Path) -> None:
    """6 % more ITL, put in by script, is FAIL and exit 1; a second stock beside it is not FAIL."""
    again = {"command": "python -m harness.mock --port {port} --itl-ms 50"}
    code, summary, out = run(
        tmp_path,
        pairs=3,
        gate={},
        # long steps: what a busy machine adds to one is small against it
        stock="--itl-ms 50",
        spin="--itl-ms 53",
        arms={"again": again},
        workload={"output_tokens": 20, "prime": "once"},
        warmup={"max_rounds": 2, "tolerance": 0.5},
    )
    assert summary["invalid_reasons"] == []
    outcomes = {arm: judged["outcome"] for arm, judged in summary["verdict"]["arms"].items()}
    assert outcomes["spin"] == "FAIL"
    assert outcomes["again"] in ("PASS", "INCONCLUSIVE")
    assert code == 1
    assert any(line.startswith("FAIL         spin") for line in out.splitlines())
    assert "verdict: FAIL" in out


def test_pairs_are_added_while_open(tmp_path: Path) -> None:
    """An inconclusive campaign goes on to max_pairs, once, and says so."""
    code, summary, out = run(
        tmp_path,
        # no interval of two pairs, nor of four, is as narrow as this
        gate={"max_pairs": 4, "margins": {"output_tok_s": 1e-9, "itl_p50": None}},
        pairs=2,
        workload={"prime": "once"},
    )
    assert summary["invalid_reasons"] == []
    assert code in (1, 3)
    assert summary["pairs"] == 4
    assert [run["pair"] for run in summary["runs"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "pairs are added" in out


def test_multi_turn_campaign(tmp_path: Path) -> None:
    """Conversations of three turns are valid: every turn finds the one before in the cache."""
    code, summary, _ = run(
        tmp_path, workload={"turns": 3, "recorded_tokens": 40}, window="full_run",
        slo={"ttft_ms": 60000, "itl_ms": 60000},
    )  # fmt: skip
    assert (code, summary["invalid_reasons"]) == (0, [])
    assert summary["arms"]["spin"]["requests"] == {"ok": 6, "total": 6}
    assert summary["runs"][0]["goodput"]["good"] == 6
    # pages of 64: 256; 288 + 40 + 32 of 360 begins with 288 cached; then 360
    assert summary["runs"][0]["cached_tokens"] == 2 * (256 + 256 + 320)


def test_trace_campaign(tmp_path: Path) -> None:
    """A replayed trace is valid, and both arms find the same in their caches."""
    lines = [
        {"timestamp": 100 * i, "input_length": 130, "output_length": 8, "hash_ids": [1, 2, 10 + i]}
        for i in range(4)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    raw = spec_dict(window="full_run")
    raw["workload"] = {
        "kind": "trace", "path": str(trace), "block_tokens": 64, "concurrency": 4,
        "arrival": {"kind": "recorded"},
    }  # fmt: skip
    path = tmp_path / "trace.yaml"
    path.write_text(yaml.safe_dump(raw))
    out = io.StringIO()
    code = execute(RunCommand(path, results=tmp_path / "results"), Progress(out))
    summary = read_summary(tmp_path)
    assert (code, summary["invalid_reasons"]) == (0, [])
    assert {entry["cached_tokens"] for entry in summary["runs"]} == {3 * 128}
    assert " prime " not in out.getvalue()


def test_server_at_a_base_url(tmp_path: Path) -> None:
    """A running server is measured as an arm and still runs afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "harness.mock", "--port", str(port), "--itl-ms", "4"]
    server = subprocess.Popen(command)
    try:
        wait_until_answers(port)
        arm = {"base_url": f"http://127.0.0.1:{port}"}
        code, summary, out = run(tmp_path, arms={"stock": arm}, workload={"output_tokens": 40})
        assert (code, summary["invalid_reasons"]) == (0, [])
        assert out.count(" start ") == 2
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def wait_until_answers(port: int) -> None:
    """Until something accepts connections."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the mock did not start")


def test_campaign_deadline(tmp_path: Path) -> None:
    """After limits.campaign_s no other pair is begun, and the result says how to go on."""
    code, summary, _ = run(tmp_path, pairs=2, limits={"campaign_s": 0.001})
    assert code == 2
    assert "`harness resume` goes on" in summary["invalid_reasons"][0]
    assert [run["pair"] for run in summary["runs"]] == [0, 0]


def test_no_pairs_are_added_after_the_deadline(tmp_path: Path) -> None:
    """An open verdict stays open when limits.campaign_s has passed; the result itself is valid."""
    code, summary, out = run(
        tmp_path, pairs=1, limits={"campaign_s": 0.001}, gate={"max_pairs": 2},
    )  # fmt: skip
    assert (code, summary["invalid_reasons"]) == (3, [])
    assert summary["pairs"] == 1
    assert "pairs are added" not in out
