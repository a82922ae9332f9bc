"""The operator: checks at the border, then the chosen implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.fold_select.workspace import Workspace, allocate
from sglang_spin.kernels.implementation import Impl, resolve


def fold_select(
    state: SpinState,
    page_table: Tensor,
    lengths: Tensor,
    request_rows: Tensor,
    *,
    verify_rows: int = 1,
    workspace: Workspace | None = None,
    fill_tail: bool = True,
    impl: Impl | None = None,
) -> Plan:
    """Begin a step for all indexer layers and rows; SpinState.begin defines every result bit.

    page_table: int32 [n, width], last dimension contiguous, columns past a row's blocks are never
    read (but column 0 always is). lengths: int32 [n], in tokens, any stride. request_rows: int [n],
    0 for padding; real rows are distinct. int64 rows cost no extra launch. verify_rows: tokens of
    each request in this step, of which `lengths` counts the first; the plan has lengths for all.

    workspace: outputs with room for n rows and width columns; without it they are allocated, which
    a CUDA graph must not record. fill_tail=False leaves columns past a row's kept blocks as they
    are (in a workspace: always pages that exist) and so costs nothing for the spare width of a
    table; the reference fills them in any case.

    impl "triton" is one launch, "numba" one compiled call on a CPU. Both bound their work by each
    row's blocks, write no state of row 0, and serve the policies with a BlockHistory; for
    spin-paper only "reference" exists, which impl=None then takes everywhere.

    Raises ValueError naming the argument, what was expected and what came.
    """
    _check(state, page_table, lengths, request_rows)
    if not 1 <= verify_rows <= state.shape.verify_rows:
        raise ValueError(f"verify_rows must be 1 to {state.shape.verify_rows}, got {verify_rows}")
    supported = isinstance(state.history, BlockHistory)
    chosen = resolve(impl, page_table.device, supported=supported, numba=True)
    n, width = page_table.shape
    if workspace is None:
        audits, classes = state.audit is not None, state.budgets.classes
        workspace = allocate(
            state.shape, n, width, page_table.device, audits=audits, classes=classes
        )
    _check_workspace(state, workspace, n, width)
    plan = Plan(
        pages=workspace.pages[:, :n, :width],
        lengths=workspace.lengths_of(n * verify_rows),
        blocks=workspace.blocks[:, :n, :width],
        request_rows=request_rows.long(),
        flags=workspace.flags_of(n, width) if state.audit is not None else None,
    )
    if n == 0:
        return plan
    if chosen == "reference":
        from sglang_spin.kernels.fold_select import reference

        reference.begin(state, page_table, lengths, plan.request_rows, plan)
        return plan
    if chosen == "numba":
        from sglang_spin.kernels.fold_select import numba

        numba.begin(state, page_table, lengths, plan, fill_tail)
        return plan
    from sglang_spin.kernels.fold_select import triton

    triton.begin(state, page_table, lengths, plan, workspace.arrivals, fill_tail)
    return plan


def _check(state: SpinState, page_table: Tensor, lengths: Tensor, request_rows: Tensor) -> None:
    blocks = state.shape.blocks
    if page_table.dim() != 2 or page_table.dtype != torch.int32 or page_table.shape[1] < 1:
        raise ValueError(f"page_table must be int32 [n, width >= 1], got {_kind(page_table)}")
    if page_table.shape[1] > blocks:
        raise ValueError(f"page_table must have at most {blocks} columns, got {_kind(page_table)}")
    if page_table.stride(1) != 1:
        raise ValueError(f"page_table must be contiguous in a row, got {page_table.stride()}")
    n = page_table.shape[0]
    if lengths.shape != (n,) or lengths.dtype != torch.int32:
        raise ValueError(f"lengths must be int32 [{n}], got {_kind(lengths)}")
    whole = (torch.int32, torch.int64)
    if request_rows.shape != (n,) or request_rows.dtype not in whole:
        raise ValueError(f"request_rows must be int64 or int32 [{n}], got {_kind(request_rows)}")
    for name, tensor in (("lengths", lengths), ("request_rows", request_rows)):
        if tensor.device != page_table.device:
            raise ValueError(f"{name} must be on {page_table.device}, got {tensor.device}")


def _check_workspace(state: SpinState, workspace: Workspace, n: int, width: int) -> None:
    if workspace.pages.shape[1] < n or workspace.pages.shape[2] < width:
        room = list(workspace.pages.shape[1:])
        raise ValueError(f"workspace must hold [{n}, {width}] rows and columns, got {room}")
    if state.audit is not None and workspace.flags is None:
        raise ValueError("workspace must have flags for audits, got none: allocate(audits=True)")
    classes, lines = state.budgets.classes, workspace.lengths.shape[0]
    if lines != (state.shape.layers if classes > 1 else 1):
        raise ValueError(
            f"workspace must have lengths for {classes} classes of layers, got {lines} lines:"
            f" allocate(classes={classes})"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
