"""The scorer that stashes block maxima itself, against the scorer followed by observe."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.kernels.observe import observe
from sglang_spin.kernels.paged_logits import Placement, observed_logits, paged_logits
from sglang_spin.kernels.paged_logits.layout import FP4, FP8, PageFormat
from tests.kernels.paged_scene import NOWHERE, UNTOUCHED, Scene, make_scene
from tests.kernels.twins import block_history

LAYERS, ROWS, BLOCKS = 2, 6, 12
SHAPE = Shape(LAYERS, ROWS, BLOCKS, 40, 100)


def _plan(scene: Scene, request_rows: list[int], seed: int) -> Plan:
    """A plan over the scene's pages whose kept blocks are random and ascending."""
    rng = np.random.default_rng(seed)
    n, width = scene.page_table.shape
    blocks = torch.full((LAYERS, n, width), NOWHERE, dtype=torch.int32)
    for layer in range(LAYERS):
        for row, length in enumerate(scene.lengths.tolist()):
            count = -(-length // BLOCK)
            chosen = np.sort(rng.choice(BLOCKS, count, replace=False))
            blocks[layer, row, :count] = torch.from_numpy(chosen)
    pages = scene.page_table.expand(LAYERS, -1, -1).contiguous()
    return Plan(pages, scene.lengths.expand(len(pages), -1), blocks, torch.tensor(request_rows))


def _fused(scene: Scene, plan: Plan, impl: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Logits and the stash of layer 1."""
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    logits = torch.full((scene.q.shape[0], scene.page_table.shape[1] * BLOCK), UNTOUCHED)
    observed_logits(
        state,
        1,
        scene.q,
        scene.cache,
        scene.weights,
        plan,
        q_scales=scene.q_scales,
        out=logits,
        impl=impl,
        **options,
    )
    return logits, block_history(state).recent


def _separate(scene: Scene, plan: Plan, impl: Any) -> tuple[Tensor, Tensor]:
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    logits = scene.run(impl).logits
    observe(state, 1, logits, plan, impl=impl)
    return logits, block_history(state).recent


@pytest.mark.parametrize("page", [FP8, FP4], ids=["fp8", "fp4"])
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    lengths=st.lists(st.integers(0, 5 * BLOCK), min_size=1, max_size=4),
)
def test_the_stash_is_that_of_the_scorer_and_observe(
    page: PageFormat, seed: int, lengths: list[int]
) -> None:
    """Logits and history have the bits of two launches, in both forms, whatever the lengths."""
    scene = make_scene(page, lengths, seed=seed)
    plan = _plan(scene, [3, 1, 5, 2][: len(lengths)], seed)
    for impl in ("triton", "reference"):
        logits, recent = _fused(scene, plan, impl)
        expected_logits, expected = _separate(scene, plan, impl)
        assert torch.equal(logits.view(torch.int32), expected_logits.view(torch.int32))
        assert torch.equal(recent, expected)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_d30_padding_rows_write_nothing(impl: str) -> None:
    """sglang 33059: padded rows updated state; only the row of the one request changes."""
    scene = make_scene(FP8, [BLOCK, 3 * BLOCK, 5])
    plan = _plan(scene, [0, 2, 0], 1)
    _, recent = _fused(scene, plan, impl)
    untouched = block_history(SpinState(SpinConfig(enabled=True), SHAPE)).recent
    assert (recent != untouched).any(-1).nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_a_batch_in_chunks_leaves_the_same_state(impl: str) -> None:
    """SGLang scores more rows than the GPU has multiprocessors in chunks; each finds its rows."""
    scene = make_scene(FP8, [70, 200, 1, 300])
    plan = _plan(scene, [4, 2, 1, 5], 2)
    _, whole = _fused(scene, plan, impl)
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    for first, last in ((0, 3), (3, 4)):
        q, weights = scene.q[first:last], scene.weights[first:last]
        observed_logits(state, 1, q, scene.cache, weights, plan, first=first, impl=impl)
    assert torch.equal(block_history(state).recent, whole)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_verify_rows_share_the_columns_of_their_table(impl: str) -> None:
    """With several rows to a table, each row's maxima go to its own row, by its table's columns."""
    scene = make_scene(FP8, [100, 101, 70, 71], next_n=2)
    columns = torch.tensor([[4, 2, NOWHERE], [1, 0, NOWHERE]], dtype=torch.int32)
    owners = torch.tensor([3, 0, 1, 2])
    maxima = torch.full((4, 5), UNTOUCHED)
    placement = Placement(owners, columns[:, : scene.page_table.shape[1]].contiguous())
    args = (scene.q, scene.cache, scene.weights, scene.lengths, scene.page_table)
    paged_logits(*args, maxima=maxima, placement=placement, impl=impl)  # type: ignore[arg-type]
    plain = scene.run(impl, maxima=True).maxima
    assert plain is not None
    expected = torch.full((4, 5), UNTOUCHED)
    for row, owner in enumerate(owners.tolist()):
        if owner:
            expected[owner, columns[row // 2, :2].long()] = plain[row, :2]
    assert torch.equal(maxima, expected)


def test_a_history_of_slots_is_refused() -> None:
    """spin-paper's state holds every score, which block maxima cannot give."""
    scene = make_scene(FP8, [5])
    state = SpinState(SpinConfig(enabled=True, policy="spin-paper"), SHAPE)
    with pytest.raises(ValueError, match="spin-paper keeps every score"):
        observed_logits(state, 0, scene.q, scene.cache, scene.weights, _plan(scene, [1], 0))


@pytest.mark.parametrize(
    ("layer", "first", "message"),
    [
        (LAYERS, 0, f"layer must be 0 to {LAYERS - 1}, got {LAYERS}"),
        (0, 1, "the plan has 1 rows, asked for slice(1, 2, None)"),
    ],
)
def test_rows_and_layers_beyond_the_plan_are_refused(layer: int, first: int, message: str) -> None:
    """A layer or a row that the plan does not have is named before anything is written."""
    scene = make_scene(FP8, [5])
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    plan = _plan(scene, [1], 0)
    with pytest.raises(ValueError, match=re.escape(message)):
        observed_logits(state, layer, scene.q, scene.cache, scene.weights, plan, first=first)


PLACED = {
    "no maxima": (None, {}, "placement says where maxima go, but maxima is None"),
    "owners": ((2, 4), {"rows": torch.zeros(2)}, r"placement.rows must be torch.int64 \[2\]"),
    "columns": (
        (2, 4),
        {"columns": torch.zeros(2, 1, dtype=torch.int32)},
        r"placement.columns must be torch.int32 \[2, >= 4\], got torch.int32 \[2, 1\]",
    ),
    "strided": (
        (2, 4),
        {"columns": torch.zeros(4, 2, dtype=torch.int32).t()},
        "each row of placement.columns must be contiguous",
    ),
}


@pytest.mark.parametrize("what", PLACED)
def test_placements_that_do_not_fit_are_refused(what: str) -> None:
    """A wrong placement is named, with what was expected and what came."""
    shape, change, message = PLACED[what]
    scene = make_scene(FP8, [100, 129])
    honest = Placement(torch.ones(2, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int32))
    with pytest.raises(ValueError, match=message):
        paged_logits(
            scene.q,
            scene.cache,
            scene.weights,
            scene.lengths,
            scene.page_table,
            maxima=None if shape is None else torch.zeros(shape),
            placement=honest._replace(**change),
        )
