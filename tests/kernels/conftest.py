"""Operators on CPU tensors: Triton's interpreter must be chosen before Triton is first imported."""

from __future__ import annotations

import os
import sys

import pytest

if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError(
        "tests/kernels needs its own pytest process: another test has imported Triton as a compiler"
    )
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks without rows of thousands of blocks."""
    from sglang_spin.kernels.fold_select import triton

    monkeypatch.setattr(triton, "CHUNK", 16)
