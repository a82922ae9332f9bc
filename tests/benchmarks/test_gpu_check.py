"""The GPU check on a machine without one: what it would run, and its refusals."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check_replay, gpu_check_values
from benchmarks.indexer_step import __main__ as command

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
@pytest.mark.parametrize("check", [command, gpu_check_values, gpu_check_replay], ids=str)
def test_a_missing_gpu_ends_in_one_line(check: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that is asked for CUDA where there is none says so in one line."""
    try:
        status: object = check.main(["--device", "cuda"])  # type: ignore[attr-defined]
    except SystemExit as exit_:
        status = exit_.code
    error = capsys.readouterr().err
    assert status == 2
    assert error.count("\n") == 1
    assert "torch sees no CUDA device" in error


def test_gpu_check_says_what_it_would_run() -> None:
    """--dry-run lists every check and makes no folder."""
    script = ROOT / "benchmarks" / "gpu_check.sh"
    done = subprocess.run(
        [script, "--dry-run", "--out", "/nowhere"], capture_output=True, text=True, check=True
    )
    for name in ("values", "graph replay", "step", "sanitizer", "grid"):
        assert f"\n{name}" in f"\n{done.stdout}"
    assert not Path("/nowhere").exists()


@pytest.mark.parametrize("arguments", [["--bogus"], ["--limit", "soon"], ["--out"]])
def test_gpu_check_refuses_bad_options_in_one_line(arguments: list[str]) -> None:
    """A wrong option ends with code 2 and one line."""
    script = ROOT / "benchmarks" / "gpu_check.sh"
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
