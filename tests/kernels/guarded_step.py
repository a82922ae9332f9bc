"""`python -m tests.kernels.guarded_step inside|past`: steps whose tensors end at a forbidden page.

A read or write past the end of any tensor ends the process by a signal. With `past`, the last
column of the page table itself lies in the forbidden page, to show that the guard bites.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.fold_select import Workspace, allocate, fold_select
from sglang_spin.kernels.observe import observe
from tests.kernels.twins import int32, page_tables

PROT_NONE = 0
BLOCKS = 37


def guard(tensor: Tensor, past: int = 0) -> Tensor:
    """The same values, the last `past` of them, and all behind them, where nobody may read."""
    room = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    region = mmap.mmap(-1, room + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + room), mmap.PAGESIZE, PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect refused the guard page")
    offset = room - tensor.nbytes + past * tensor.element_size()
    moved = torch.frombuffer(region, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    inside = tensor.numel() - past
    moved[:inside].copy_(tensor.flatten()[:inside])
    return moved.view(tensor.shape)


def guarded_state() -> SpinState:
    """Two rows just opened; the second is the last that the state has."""
    config = SpinConfig(enabled=True, sparsity=0.5, audit_every=2, miss_slo=0.05)
    state = SpinState(config, Shape(2, 3, BLOCKS, 80, 100))
    state.budgets.set(Allotment(0.5, (0.6, 0.4), (1, 0)))
    state.open_rows(torch.tensor([1, 2]))
    owners = (
        (state.history, ("vertical", "distance", "recent")),
        (state, ("prior", "fresh", "generation", "step", "stashed")),
        (state.budgets, ("table", "layer_class")),
        (state.counters, ("kept", "seen", "scalars")),
        (state.audit, ("tallies", "histogram", "edges")),
    )
    for owner, names in owners:
        for name in names:
            setattr(owner, name, guard(getattr(owner, name)))
    return state


def main(past: bool) -> None:
    # the interpreter copies arguments onto themselves after a launch, the forbidden part too
    GridExecutor._restore_args_dev = lambda *_arguments: None
    state = guarded_state()
    plain = allocate(state.shape, 2, BLOCKS, "cpu", audits=True, classes=2)
    workspace = Workspace(*(guard(tensor) for tensor in vars(plain).values()))
    table = guard(page_tables([3, BLOCKS], BLOCKS), past=int(past))
    rows = guard(torch.tensor([1, 2]))
    for length in (BLOCKS * BLOCK - 3, BLOCKS * BLOCK - 2, BLOCKS * BLOCK - 1, BLOCKS * BLOCK):
        lengths = guard(int32([150, length]))
        plan = fold_select(state, table, lengths, rows, workspace=workspace, impl="triton")
        logits = guard(torch.randn(2, BLOCKS * BLOCK))
        for layer in range(2):
            observe(state, layer, logits, plan, impl="triton")
            audit(state, layer, logits, plan, impl="triton")
    assert state.audit.tallies[:, 2, 0].tolist() == [2, 2]


if __name__ == "__main__":
    main(past=sys.argv[1] == "past")
