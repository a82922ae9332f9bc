"""`env.json`: where and with what a result was made."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.control import ServerFacts
from harness.preflight import gpu_memories_mib
from harness.spec import Spec

PACKAGES = (
    "sglang-spin", "sglang", "torch", "triton", "aiohttp", "uvloop", "orjson", "numpy", "pydantic",
)  # fmt: skip
_SECRET = ("key", "token", "password", "secret")
_NOT_SECRET = ("tokens", "tokenizer", "token_capacity", "token_id")


def environment(spec: Spec, servers: Mapping[str, ServerFacts]) -> dict[str, Any]:
    """Everything known of machine, software, and servers; secrets of the servers are left out."""
    return {
        "written_unix_s": time.time(),
        # requests.parquet holds the monotonic clock; this pair places it on the wall clock
        "clock_anchor": {"perf_counter_ns": time.perf_counter_ns(), "unix_ns": time.time_ns()},
        "argv": sys.argv,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu_memory_mib": gpu_memories_mib(),
        "packages": {name: _package_version(name) for name in PACKAGES},
        "commands": {
            name: arm.base_url or " ".join([arm.command or "", *arm.args])
            for name, arm in spec.arms.items()
        },
        "servers": {name: without_secrets(facts.raw) for name, facts in servers.items()},
    }


def without_secrets(value: Any) -> Any:
    """The same structure with the values of secret-looking keys replaced."""
    if isinstance(value, dict):
        return {
            key: "(left out)" if _is_secret(str(key), item) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return value


def _is_secret(key: str, value: Any) -> bool:
    name = key.lower()
    return (
        isinstance(value, str)
        and any(word in name for word in _SECRET)
        and not any(word in name for word in _NOT_SECRET)
    )


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            command, cwd=here, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None
