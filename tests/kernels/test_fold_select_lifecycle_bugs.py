"""Field bugs around graphs, padding, rejected tokens and recycled rows, turned on fold_select."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SUSPECT
from sglang_spin.kernels.fold_select import Workspace, allocate, fold_select
from tests.kernels.small_steps import (
    SHAPE,
    kept_blocks,
    score_all,
    small_twins,
    step,
    warm,
)
from tests.kernels.twins import Twins, block_history, int32, page_tables

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_c27_history_follows_positions_when_pages_move() -> None:
    """sglang 31218: a moved cache was indexed by the wrong unit; other pages, same selection."""
    plans = []
    for first in (1, 200):
        twins = small_twins()
        warm(twins, {1: 40})
        table = page_tables([40], 40, first=first)
        plans.append(twins.begin(table, int32([40 * BLOCK]), torch.tensor([1])))
    assert torch.equal(plans[0].blocks, plans[1].blocks)
    assert torch.equal(plans[0].pages + 199, plans[1].pages)


def test_d30_padding_rows_change_no_state() -> None:
    """sglang 33059: padded rows updated real state; here not even row 0 changes."""
    twins = small_twins()
    warm(twins, {1: 20})
    before = _snapshot(twins)
    step(twins, {1: 20 * BLOCK})
    alone = _snapshot(twins)
    table = page_tables([20, 1, 30, 0], 31)
    rows = torch.tensor([1, 0, 0, 0])
    twins = small_twins()
    warm(twins, {1: 20})
    twins.begin(table, int32([20 * BLOCK, 1, 30 * BLOCK, 0]), rows)
    padded = _snapshot(twins)
    for name, tensor in padded.items():
        assert torch.equal(tensor, alone[name]), name
        row = 0 if tensor.dim() == 1 else (slice(None), 0)
        assert torch.equal(tensor[row], before[name][row]), name


def test_d29_a_batch_of_padding_alone() -> None:
    """sglang 15132: an idle rank's padded batch was treated as real; it counts as no step."""
    twins = small_twins()
    twins.begin(page_tables([1, 1], 3), int32([1, 1]), torch.tensor([0, 0]))
    assert twins.kernel.counters.read()["steps"] == 0


def test_e35_rejected_tokens_leave_no_trace() -> None:
    """tokenspeed 207: state of a rejected token survived; it equals a life without that token."""
    twins, plain = small_twins(), small_twins()
    for life in (twins, plain):
        warm(life, {1: 30})
        score_all(life, step(life, {1: 29 * BLOCK}), 1.0)
    rejected = step(twins, {1: 29 * BLOCK + 1})
    score_all(twins, rejected, 1e20)
    step(twins, {1: 29 * BLOCK + 1})
    step(plain, {1: 29 * BLOCK + 1})
    for name in ("vertical", "distance"):
        a, b = (getattr(block_history(life.kernel), name)[:, 1] for life in (twins, plain))
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_f41_a_recycled_row_starts_from_nothing() -> None:
    """sglang 18744: a row was recycled while state of its last owner stood."""
    twins = small_twins()
    warm(twins, {1: 30})
    score_all(twins, step(twins, {1: 30 * BLOCK - 1}), SUSPECT)
    twins.open_rows(torch.tensor([1]))
    plan = step(twins, {1: 30 * BLOCK})
    assert kept_blocks(plan, 0, 0) == list(range(30))


def test_f42_rows_grow_across_chunks() -> None:
    """sglang 23239: a buffer grown in mid-request kept its -1 markers; new blocks start cold."""
    twins = small_twins()
    warm(twins, {1: 15})
    for length in range(15 * BLOCK - 1, 17 * BLOCK + 2, BLOCK // 2 + 1):
        plan = step(twins, {1: length}, slack=0)
        assert kept_blocks(plan, 1, 0)[-1] == -(-length // BLOCK) - 1
        score_all(twins, plan, 0.5)


def _snapshot(twins: Twins) -> dict[str, Tensor]:
    state, history = twins.kernel, block_history(twins.kernel)
    tensors = {n: getattr(state, n) for n in ("fresh", "generation", "step", "stashed")}
    for name in ("vertical", "distance", "recent"):
        tensors[name] = getattr(history, name).view(torch.int32)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_d28_buffers_stay_where_a_graph_recorded_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRT-LLM 16307: buffers baked into a graph went stale; a step makes none and moves none."""
    workspace = allocate(SHAPE, 2, 12, "cpu")
    twins = Twins(SpinConfig(enabled=True, sparsity=0.5), SHAPE, workspace)
    warm(twins, {1: 9, 2: 9})
    lengths, rows = int32([9 * BLOCK - 5, 9 * BLOCK - 7]), torch.tensor([1, 2])
    table = page_tables([9, 9], 12)
    held = [t.data_ptr() for t in _held(workspace, twins)]
    for _ in range(3):
        lengths += 1
        with monkeypatch.context() as patch:
            for name in ("empty", "zeros", "full", "arange"):
                patch.setattr(torch, name, _refuse)
            plan = fold_select(
                twins.kernel, table, lengths, rows, workspace=workspace, impl="triton"
            )
        assert plan.pages.data_ptr() == workspace.pages.data_ptr()
    assert held == [t.data_ptr() for t in _held(workspace, twins)]


def _held(workspace: Workspace, twins: Twins) -> list[Tensor]:
    outputs = [t for t in vars(workspace).values() if t is not None]
    return outputs + _state_tensors(twins)


def _refuse(*_: object, **__: object) -> Tensor:
    raise AssertionError("the step allocated")


def _state_tensors(twins: Twins) -> list[Tensor]:
    history = block_history(twins.kernel)
    return [history.vertical, history.distance, history.recent, twins.kernel.stashed]


def test_d31_padded_requests_of_length_zero_behind_real_ones() -> None:
    """vLLM 49302: padded zero-length requests broke the batch; here they plan nothing."""
    twins = small_twins()
    warm(twins, {1: 12})
    alone = step(twins, {1: 12 * BLOCK - 3})
    again = small_twins()
    warm(again, {1: 12})
    table = torch.cat((page_tables([12], 14), torch.zeros(2, 14, dtype=torch.int32)))
    padded = again.begin(table, int32([12 * BLOCK - 3, 0, 0]), torch.tensor([1, 0, 0]))
    assert padded.lengths[0].tolist() == [int(alone.lengths[0, 0]), 0, 0]
    assert kept_blocks(padded, 0, 0) == kept_blocks(alone, 0, 0)
