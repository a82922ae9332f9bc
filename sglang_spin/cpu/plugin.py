"""Entry point `spin_cpu` of group `sglang.srt.plugins`: completes SGLang where there is no GPU."""

from __future__ import annotations

import os

from sglang_spin.cpu.bootstrap import SWITCH


def register() -> None:
    """Install the CPU engine where it is asked for; otherwise do nothing.

    Raises SystemExit with one line where a GPU is present, or where SGLang is not the version these
    patches were written for. SystemExit, because SGLang logs and ignores an Exception of a plugin.
    """
    if os.environ.get(SWITCH, "0") != "1":
        return
    import torch

    if torch.cuda.is_available():
        raise SystemExit(
            f"sglang_spin.cpu: {SWITCH}=1 is set but this machine has a CUDA device; "
            "unset it, the CPU engine is for machines without one"
        )
    from sglang_spin.cpu import patches
    from sglang_spin.engine import ledger

    ledger.require(patches.PATCHES)
    patches.register()
