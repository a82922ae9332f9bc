"""The entry point that SGLang calls in each of its processes."""

from __future__ import annotations


def register() -> None:
    """Hook SPIN into this process if SPIN_ENABLED says so; otherwise register nothing."""
    from sglang_spin.config import from_env

    if not from_env().enabled:
        return
    from sglang_spin.engine.install import register_stage_one

    register_stage_one()
