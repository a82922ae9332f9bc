"""One step from states that lives seldom reach: any size, any mix of scores and cold blocks."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import AGE_CAP
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.kernels.fold_select import allocate, fold_select
from sglang_spin.kernels.fold_select import triton as kernel
from tests.kernels.twins import Twins, block_history, give_history, int32, page_tables

LAYERS, ROWS, BLOCKS, PAGES = 2, 4, 70, 220
_NONE = 0x7FC00000
_ODD = [0.0, -0.0, 2e30, 1e30, -1e30, 1e-44, -1e-44, 1.0, np.nextafter(np.float32(1), 2)]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks without rows of thousands of blocks."""
    monkeypatch.setattr(kernel, "CHUNK", 32)


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ties, untrusted scores, both zeros, denormals and ordinary numbers."""
    smooth = rng.normal(size=shape).astype(np.float32)
    coarse = rng.integers(-2, 3, shape).astype(np.float32)
    odd = rng.choice(np.array(_ODD, np.float32), shape)
    pick = rng.random(shape)
    return np.where(pick < 0.4, smooth, np.where(pick < 0.7, coarse, odd))


def _scramble(state: SpinState, row: int, count: int, seed: int) -> None:
    """Fill one row's first `count` blocks; which blocks are cold is the same in every layer."""
    rng = np.random.default_rng(seed)
    shape = (LAYERS, count)
    cold = np.broadcast_to(rng.random(count) < 0.2, shape)
    fill = np.where(cold, np.nan, _values(rng, shape)).astype(np.float32)
    scored = np.where(cold, rng.random(count) < 0.5, rng.random(shape) < 0.5)
    age = rng.integers(0, AGE_CAP + 1, shape, dtype=np.int32)
    bits = np.where(scored, _values(rng, shape).view(np.int32), age | _NONE)
    history = block_history(state)
    history.vertical[:, row, :count] = torch.from_numpy(fill)
    known = rng.random(shape) < 0.7
    distance = np.where(known, _values(rng, shape), np.nan).astype(np.float32)
    history.distance[:, row, :count] = torch.from_numpy(distance)
    history.recent[:, row, :count] = torch.from_numpy(bits.astype(np.int32))
    state.step[row] = int(rng.integers(0, 2**31 - 1))
    state.generation[row] = int(rng.integers(0, 2**31 - 1))


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "spin", "spin", "prev-iter", "random"]),
    staleness=st.sampled_from([0.0, 0.4, 10.0]),
    sparsity=st.sampled_from([0.0, 0.4, 0.95]),
    lengths=st.lists(st.integers(1, BLOCKS * BLOCK), min_size=2, max_size=2),
    grown=st.sampled_from([-70, 0, 1, 64, 200]),
    slack=st.integers(0, 5),
)
def test_any_state_steps_to_the_same_bits(
    seed: int,
    policy: str,
    staleness: float,
    sparsity: float,
    lengths: list[int],
    grown: int,
    slack: int,
) -> None:
    """Folded, rejected, warm and inherited rows of any size give the reference's plan and state."""
    config = SpinConfig(
        enabled=True, policy=policy, staleness=staleness, sparsity=sparsity, seed=seed % 2**31
    )
    twins = Twins(config, Shape(LAYERS, ROWS, BLOCKS, PAGES, 100))
    counts = [-(-n // BLOCK) for n in lengths]
    table = page_tables([*counts, 1], min(BLOCKS, max(counts) + slack))
    rng = np.random.default_rng(seed)
    prior = torch.from_numpy(_values(rng, (LAYERS, PAGES + 1)))
    prior[:, torch.from_numpy(rng.random(PAGES + 1) < 0.5)] = float("nan")

    def prepare(state: SpinState) -> None:
        state.open_rows(torch.tensor([1, 3]))
        state.prior.copy_(prior)
        _scramble(state, 3, counts[0], seed)
        state.fresh[3] = False
        state.stashed[3] = max(0, lengths[0] - grown)

    twins.each(prepare)
    twins.begin(table, int32([*lengths, 1]), torch.tensor([3, 1, 0]))


def test_a_row_of_16384_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest row, with the production chunk, selects and marks as the reference does."""
    monkeypatch.undo()
    count = 16384
    twins = Twins(SpinConfig(enabled=True, sparsity=0.4), Shape(1, 2, count, 3, 2048))
    rng = np.random.default_rng(1)
    scores = np.round(rng.normal(size=(1, count)), 2).astype(np.float32)
    give_history(twins, 1, torch.from_numpy(scores))
    table = torch.full((1, count), 2, dtype=torch.int32)
    plan = twins.begin(table, int32([count * BLOCK]), torch.tensor([1]))
    assert plan.lengths[0].item() == BLOCK * (count - int(0.4 * count))


def test_a_workspace_serves_every_batch_that_fits() -> None:
    """Narrower batches get views of the same tensors, whatever an earlier step left in them."""
    shape = Shape(LAYERS, ROWS, BLOCKS, PAGES, 100)
    workspace = allocate(shape, 3, BLOCKS, "cpu")
    twins = Twins(SpinConfig(enabled=True, sparsity=0.5), shape, workspace)
    give_history(twins, 1, torch.randn(LAYERS, 20))
    give_history(twins, 2, torch.randn(LAYERS, 60))
    twins.begin(page_tables([20, 60], 64), int32([1270, 3800]), torch.tensor([1, 2]))
    twins.begin(page_tables([20], 23), int32([1271]), torch.tensor([1]))


def test_unfilled_tails_keep_what_the_workspace_held() -> None:
    """fill_tail=False writes the kept columns alone."""
    shape = Shape(LAYERS, ROWS, BLOCKS, PAGES, 100)
    workspace = allocate(shape, 1, BLOCKS, "cpu")
    state = SpinState(SpinConfig(enabled=True), shape)
    state.open_rows(torch.tensor([1]))
    workspace.pages.fill_(7)
    table = page_tables([20], BLOCKS)
    plan = fold_select(
        state,
        table,
        int32([20 * BLOCK]),
        torch.tensor([1]),
        workspace=workspace,
        fill_tail=False,
        impl="triton",
    )
    assert torch.equal(plan.pages[:, 0, :20], table[0, :20].expand(LAYERS, 20))
    assert bool((plan.pages[:, 0, 20:] == 7).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_table": torch.zeros(2, 4)}, "page_table must be int32"),
        ({"page_table": torch.zeros(2, 71, dtype=torch.int32)}, "at most 70 columns"),
        ({"page_table": torch.zeros(4, 2, dtype=torch.int32).T}, "contiguous in a row"),
        ({"lengths": torch.ones(2, dtype=torch.int64)}, "lengths must be int32 [2], got int64 [2]"),
        ({"request_rows": torch.ones(3, dtype=torch.int64)}, "request_rows must be int64 or int32"),
        ({"impl": "cuda"}, "impl must be 'triton', 'numba', 'reference' or None, got 'cuda'"),
        ({"workspace": "small"}, "workspace must hold [2, 4] rows and columns, got [1, 4]"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_arguments_are_named(change: dict, message: str) -> None:
    """A wrong argument is refused with its name, what was expected and what came."""
    shape = Shape(LAYERS, ROWS, BLOCKS, PAGES, 100)
    arguments = {
        "page_table": torch.zeros(2, 4, dtype=torch.int32),
        "lengths": int32([1, 1]),
        "request_rows": torch.tensor([1, 2]),
        **change,
    }
    if arguments.get("workspace"):
        arguments["workspace"] = allocate(shape, 1, 4, "cpu")
    with pytest.raises(ValueError, match=re.escape(message)):
        fold_select(SpinState(SpinConfig(enabled=True), shape), **arguments)


def test_triton_is_refused_where_it_has_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """spin-paper's slots, and a CPU without the interpreter, do not silently get another impl."""
    shape = Shape(LAYERS, ROWS, 4, PAGES, 100)
    arguments = (torch.zeros(1, 4, dtype=torch.int32), int32([1]), torch.tensor([1]))
    paper = SpinState(SpinConfig(enabled=True, policy="spin-paper"), shape)
    with pytest.raises(ValueError, match="has no form for this policy's state"):
        fold_select(paper, *arguments, impl="triton")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="needs tensors on a GPU, got cpu"):
        fold_select(SpinState(SpinConfig(enabled=True), shape), *arguments, impl="triton")
