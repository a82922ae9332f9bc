"""Where fold_select and observe reach in memory: never past a tensor, and far without overflow."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape
from tests.kernels.twins import Twins, block_history, int32, page_tables

ROOT = Path(__file__).parents[2]
MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def _run_guarded(case: str) -> int:
    command = [sys.executable, "-m", "tests.kernels.guarded_step", case]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode


def test_nothing_is_touched_past_any_tensor() -> None:
    """With every tensor ending at a forbidden page, two full steps run to their end."""
    assert _run_guarded("inside") == 0


def test_the_forbidden_page_is_seen() -> None:
    """A page table one column shorter than claimed ends the process: the check above can fail."""
    assert _run_guarded("past") == -signal.SIGSEGV


def _reserve(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written."""
    count = int(np.prod(shape))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    region = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
    return torch.frombuffer(region, dtype=dtype, count=count).view(shape)


@pytest.fixture
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter copies every argument's storage onto itself after a launch."""
    from triton.runtime.interpreter import GridExecutor

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *_arguments: None)


@pytest.mark.usefixtures("_no_copies")
def test_c24_state_beyond_two_to_the_31st_element() -> None:
    """sglang 34725: page * 8448 overflowed int32; state lines and priors lie further than that."""
    layers, rows, blocks, pages = 2, 70000, 16384, 1_200_000_000
    twins = Twins(SpinConfig(enabled=True, sparsity=0.5), Shape(layers, rows, 20, 9, 100))
    shape = Shape(layers, rows, blocks, pages, 100)

    def enlarge(state: object) -> None:
        history = block_history(state)
        history.vertical = _reserve((layers, rows, blocks), torch.float32)
        history.distance = _reserve((layers, rows, blocks), torch.float32)
        history.stash = _reserve((1, layers, rows, blocks), torch.int32)
        history.recent = history.stash[0]
        state.prior = _reserve((layers, pages + 1), torch.float32)
        state.shape = shape
        state.budgets.table = torch.arange(blocks + 1, dtype=torch.int32)[None] // 2

    twins.each(enlarge)
    twins.compare = lambda: None  # it would read all of it
    last = rows - 1
    twins.open_rows(torch.tensor([last]))
    table = page_tables([20], 20, first=pages - 30)
    for state in (twins.reference, twins.kernel):
        state.prior[:, pages - 30 :] = torch.randn(31, generator=torch.Generator().manual_seed(1))
        state.prior[1, pages - 25] = 9.0
    plan = twins.begin(table, int32([20 * BLOCK - 1]), torch.tensor([last]))
    logits = torch.randn(1, 20 * BLOCK)
    for layer in range(layers):
        twins.observe(layer, logits, plan)
    twins.begin(table, int32([20 * BLOCK]), torch.tensor([last]))
    for name in ("vertical", "distance", "recent"):
        a, b = (
            getattr(block_history(s), name)[:, last, :20].view(torch.int32)
            for s in (twins.reference, twins.kernel)
        )
        assert torch.equal(a, b), name
        assert bool((b != 0).any())


@pytest.mark.usefixtures("_no_copies")
def test_c26_logits_rows_beyond_two_to_the_31st_element() -> None:
    """flashinfer 3136: row * stride overflowed int32; here the third row starts beyond 2**31."""
    twins = Twins(SpinConfig(enabled=True), Shape(1, 4, 3, 9, 100))
    wide = _reserve((3, 2**30 + 64), torch.float32)
    wide[2, : 2 * BLOCK] = torch.randn(2 * BLOCK)
    blocks = torch.tensor([[[0, 0], [0, 0], [1, 2]]], dtype=torch.int32)
    plan = Plan(blocks, int32([0, 0, 2 * BLOCK])[None], blocks, torch.tensor([1, 2, 3]))
    twins.observe(0, wide[:, : 2 * BLOCK], plan)
    scores = block_history(twins.kernel).recent[0, 3, 1:].view(torch.float32)
    assert torch.equal(scores, wide[2, : 2 * BLOCK].view(2, BLOCK).amax(-1))
