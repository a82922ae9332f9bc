"""What the figures were measured on, recorded beside them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "triton", "numba", "sglang", "deep_gemm", "sgl-deep-gemm")
CPU_LIMIT = 24e9  # bytes: the machine that CI and developers have
SHARE = 0.9  # of the free memory that a measurement may take


def describe(device: torch.device) -> dict[str, Any]:
    """Processor, device, versions, and the load at this moment."""
    found: dict[str, Any] = {
        "device": device.type,
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: there for name in PACKAGES if (there := _version(name))},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda or torch.version.hip,
        }
    return found


def memory_limit(device: torch.device) -> float:
    """Bytes a measurement may hold: free memory less a tenth; on a CPU 24 GB at most."""
    if device.type == "cuda":
        return SHARE * torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return min(CPU_LIMIT, SHARE * free * 1024)


def busy(described: dict[str, Any]) -> bool:
    """Whether something else was running: a CPU measurement is then doubtful."""
    return bool(described["load_at_start"] >= described["cores"])


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
