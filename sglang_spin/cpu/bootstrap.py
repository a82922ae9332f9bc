"""What must be in place before SGLang is imported on a machine without a GPU.

SGLang imports `sgl_kernel` and `torchvision` long before it loads plugins. Neither has a wheel that
works without CUDA libraries, so folders with stand-ins go to the front of the import path. Spawned
children receive their parent's import path before they import anything, so they find them as well.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sglang_spin.cpu import launch_defaults

SWITCH = "SGLANG_USE_CPU_ENGINE"
STAND_INS = Path(__file__).parent / "stand_ins"


def prepare() -> None:
    """Set the CPU engine's environment and import path in this process; idempotent.

    Values the caller has already set in the environment stay. Call it before anything imports
    torch, numba or sglang: their thread settings are read on import. Raises SystemExit where sglang
    was imported already.
    """
    if "sglang" in sys.modules and str(STAND_INS) not in sys.path:
        raise SystemExit("sglang_spin.cpu: bootstrap.prepare() must run before sglang is imported")
    for name, value in launch_defaults.ENV.items():
        os.environ.setdefault(name, value)
    if str(STAND_INS) not in sys.path:
        sys.path.insert(0, str(STAND_INS))


def environment(base: dict[str, str]) -> dict[str, str]:
    """`base` plus what a child needs to run `python -m sglang.launch_server` without prepare()."""
    path = [str(STAND_INS), *filter(None, [base.get("PYTHONPATH")])]
    return launch_defaults.ENV | base | {"PYTHONPATH": os.pathsep.join(path)}
