"""Two SpinStates that live the same life, one stepped in torch and one by a compiled form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.fold_select import Workspace, allocate, fold_select
from sglang_spin.kernels.implementation import Impl
from sglang_spin.kernels.observe import observe


class Twins:
    """Stands where an engine has its SpinState; compares every bit after every step."""

    def __init__(
        self,
        config: SpinConfig,
        shape: Shape,
        workspace: Workspace | None = None,
        impl: Impl = "triton",
    ) -> None:
        self.impl = impl
        self.reference, self.kernel = SpinState(config, shape), SpinState(config, shape)
        self.shape, self.workspace = shape, workspace

    def each(self, act: Any) -> None:
        """Do the same to both states."""
        for state in (self.reference, self.kernel):
            act(state)

    def divide(self, allotment: Allotment) -> None:
        """Give the layers of both other budgets."""
        self.each(lambda state: state.budgets.set(allotment))

    def open_rows(self, rows: Tensor) -> None:
        self.each(lambda state: state.open_rows(rows))

    def close_rows(self, row: Tensor, pages: Tensor, length: int | None = None) -> None:
        self.each(lambda state: state.close_rows(row, pages, length))
        self.compare()

    def drop_pages(self, pages: Tensor) -> None:
        self.each(lambda state: state.drop_pages(pages))

    def begin(
        self, page_table: Tensor, lengths: Tensor, rows: Tensor, verify_rows: int = 1
    ) -> Plan:
        """The reference's plan; the kernel's outputs start as garbage."""
        n, width = page_table.shape
        options = {"audits": self.kernel.audit is not None, "classes": self.kernel.budgets.classes}
        workspace = self.workspace or allocate(self.shape, n, width, "cpu", **options)
        for tensor in (workspace.pages, workspace.blocks, workspace.lengths):
            tensor.fill_(-77)
        if workspace.flags is not None:
            workspace.flags.fill_(77)
        batch = (page_table, lengths, rows)
        expected = fold_select(self.reference, *batch, verify_rows=verify_rows, impl="reference")
        plan = fold_select(
            self.kernel, *batch, verify_rows=verify_rows, workspace=workspace, impl=self.impl
        )
        for name in ("pages", "lengths", "blocks", "request_rows"):
            assert torch.equal(getattr(plan, name), getattr(expected, name)), name
        _compare_flags(plan, expected, lengths + (verify_rows - 1))
        assert not workspace.arrivals.any()
        self.compare()
        return expected

    def observe(self, layer: int, logits: Tensor, plan: Plan) -> None:
        observe(self.reference, layer, logits, plan, impl="reference")
        observe(self.kernel, layer, logits, plan, impl=self.impl)
        audit(self.reference, layer, logits, plan, impl="reference")
        audit(self.kernel, layer, logits, plan, impl=self.impl)
        self.compare()

    def compare(self) -> None:
        """All state of real rows is the same bits; row 0 is nobody's."""
        pair = (self.reference, self.kernel)
        for name in ("fresh", "generation", "step", "stashed", "verified"):
            a, b = (getattr(state, name)[1:] for state in pair)
            assert torch.equal(a, b), name
        for name in ("vertical", "distance", "recent"):
            a, b = (_line(state, name) for state in pair)
            assert torch.equal(a, b), name
        a, b = (block_history(state).stash[1:, :, 1:] for state in pair)
        assert torch.equal(a, b), "stash"
        a, b = (state.prior.view(torch.int32) for state in pair)
        assert torch.equal(a, b), "prior"
        assert self.reference.counters.read() == self.kernel.counters.read()
        if self.reference.audit is not None and self.kernel.audit is not None:
            for name in ("tallies", "histogram"):
                a, b = (getattr(state.audit, name) for state in pair)
                assert torch.equal(a, b), name


def _compare_flags(plan: Plan, expected: Plan, lengths: Tensor) -> None:
    if expected.flags is None:
        assert plan.flags is None
        return
    assert torch.equal(plan.flags.audited, expected.flags.audited), "audited"
    block = torch.arange(plan.blocks.shape[2])
    ours, theirs = plan.flags.blocks, expected.flags.blocks
    noted = expected.flags.audited[:, None] & (block * BLOCK < lengths[:, None])
    assert torch.equal(ours * noted, theirs * noted), "flags"
    assert (ours == 77)[~noted.expand_as(ours)].all(), "flags of rows that are not audited"


def block_history(state: SpinState) -> BlockHistory:
    assert isinstance(state.history, BlockHistory)
    return state.history


def _line(state: SpinState, name: str) -> Tensor:
    tensor: Tensor = getattr(block_history(state), name)
    return tensor[:, 1:].view(torch.int32)


def page_tables(counts: list[int], width: int, first: int = 1) -> Tensor:
    """Distinct pages for every block; columns past a row's blocks name a page that does not exist.

    int32 [len(counts), width]; a read of a stale column shows as a wrong page or a crash.
    """
    table = torch.full((len(counts), width), 2**31 - 1, dtype=torch.int32)
    table[:, 0] = 0
    for i, count in enumerate(counts):
        start = first + sum(counts[:i])
        table[i, :count] = torch.arange(start, start + count)
    return table


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def give_history(twins: Twins, row: int, scores: Tensor) -> None:
    """A real row, warm and not fresh, whose vertical averages are `scores`, fp32 [layers, n]."""
    n = scores.shape[1]

    def act(state: SpinState) -> None:
        state.open_rows(torch.tensor([row]))
        state.fresh[row] = False
        block_history(state).vertical[:, row, :n] = scores

    twins.each(act)
