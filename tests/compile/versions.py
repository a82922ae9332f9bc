"""The Triton versions that kernels must compile on, and a worker process for each."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compile.resources import NOW_AT, Resources

PINNED = "3.8.0"  # with the torch that SGLang 0.5.23 pins
OLDER = "3.6.0"  # with torch 2.11, still met on GPU machines
ROOT = Path(__file__).parents[2]


def cache_folder() -> Path:
    """Where the second Triton and compiled kernels stay between runs; CI passes its own."""
    default = Path.home() / ".cache" / "sglang-spin" / "compile"
    return Path(os.environ.get("COMPILE_GATE_CACHE") or default)


def measure_all(operators: list[str]) -> dict[str, list[Resources]]:
    """Resources of all compile cases, by Triton version; one process each, in parallel if possible.

    Raises RuntimeError where a Triton cannot be had or a worker fails.
    """
    paths = {PINNED: None, OLDER: _installed(OLDER, cache_folder())}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = {v: pool.submit(_measure, v, paths[v], operators) for v in paths}
        return {version: job.result() for version, job in jobs.items()}


def _measure(version: str, path: Path | None, operators: list[str]) -> list[Resources]:
    # the newest disassembler for both: the one in 3.6.0 does not know sm_103
    tools = _tools()
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(str(p) for p in (path, ROOT) if p)
    environment["TRITON_CACHE_DIR"] = str(cache_folder() / "kernels")
    command = [sys.executable, "-m", "tests.compile.worker", str(tools), *operators]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.splitlines()
        last = [line for line in lines if line.startswith(NOW_AT)][-1:]
        reasons = [line for line in lines if "error" in line.lower()][-5:] or lines[-5:]
        raise RuntimeError("\n".join([f"Triton {version} failed", *last, *reasons]))
    answer = json.loads(done.stdout)
    if answer["triton"] != version:
        raise RuntimeError(f"the gate needs Triton {version}, found {answer['triton']}")
    return [Resources(**fields) for fields in answer["resources"]]


def _tools() -> Path:
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise RuntimeError(f"the compile gate needs Triton: pip install triton=={PINNED}")
    return Path(found.origin).parent / "backends" / "nvidia" / "bin"


def _installed(version: str, folder: Path) -> Path:
    """A folder that holds this Triton and nothing else, installed there unless it is present."""
    place = folder / f"triton-{version}"
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        target = Path(partial) / "triton"
        options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(target)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, f"triton=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"cannot install Triton {version} into {place}, without which nobody knows that"
                f" the kernels compile there: {done.stderr.strip()[-1000:]}"
            )
        target.rename(place)
    return place
