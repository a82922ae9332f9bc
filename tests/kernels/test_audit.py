"""The audit of a layer's scores, in torch, numba and Triton."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.audit import Flags
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.audit import triton as kernel
from tests.kernels.twins import int32

LAYERS, ROWS, BLOCKS, TOPK = 2, 5, 24, 100
SHAPE = Shape(LAYERS, ROWS, BLOCKS, 40, TOPK)
GARBAGE = [float("nan"), float("inf"), -float("inf"), 1e30]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks without rows of thousands of entries."""
    monkeypatch.setattr(kernel, "CHUNK", 256)


def _state() -> SpinState:
    return SpinState(SpinConfig(enabled=True, audit_every=1), SHAPE)


def _plan(rng: np.random.Generator, lengths: list[int], rows: list[int], audited: list) -> Plan:
    """A plan of rows scored in full with random flags, garbage where no row is audited."""
    n = len(lengths)
    blocks = torch.arange(BLOCKS, dtype=torch.int32).expand(LAYERS, n, BLOCKS)
    flags = torch.from_numpy(rng.choice([0, 1, 3], (LAYERS, n, BLOCKS))).to(torch.uint8)
    full = torch.tensor(audited)
    flags[:, ~full] = 77
    each = int32(lengths).expand(LAYERS, -1)
    return Plan(blocks, each, blocks, torch.tensor(rows), Flags(full, flags))


def _scores(rng: np.random.Generator, lengths: list[int], levels: int) -> Tensor:
    """Scores on few levels, so that the threshold has ties; garbage past the length."""
    scores = rng.integers(-levels, levels + 1, (len(lengths), BLOCKS * BLOCK)) / 7
    found = torch.from_numpy(scores.astype(np.float32))
    for i, length in enumerate(lengths):
        found[i, length:] = float(rng.choice(GARBAGE))
    return found


def _agree(plan: Plan, logits: Tensor) -> SpinState:
    """Run all forms twice over each layer, compare every tally, return the reference's state."""
    states = {impl: _state() for impl in ("reference", "numba", "triton")}
    for impl, state in states.items():
        for layer in (0, 1, 1):
            audit(state, layer, logits, plan, impl=impl)
    for state in states.values():
        for name in ("tallies", "histogram"):
            ours, theirs = (getattr(s.audit, name) for s in (state, states["reference"]))
            assert torch.equal(ours, theirs)
    return states["reference"]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(TOPK + 1, BLOCKS * BLOCK), min_size=1, max_size=3),
    levels=st.sampled_from([0, 1, 30, 10000]),
    odd=st.sampled_from([None, *GARBAGE, -0.0]),
)
def test_all_forms_count_the_same(
    seed: int, lengths: list[int], levels: int, odd: float | None
) -> None:
    """Whatever the ties, the odd scores, the tails and the flags, tallies are the same integers."""
    rng = np.random.default_rng(seed)
    audited = [bool(rng.random() < 0.7) for _ in lengths]
    plan = _plan(rng, lengths, [3, 1, 4][: len(lengths)], audited)
    logits = _scores(rng, lengths, levels)
    if odd is not None:
        logits[:, rng.integers(0, logits.shape[1], 9)] = odd
    state = _agree(plan, logits)
    assert int(state.audit.tallies[..., 0].sum()) == 3 * sum(audited)


@pytest.mark.parametrize("length", [TOPK + 1, 255, 256, 257, 511, 512, 513, BLOCKS * BLOCK])
def test_rows_end_anywhere_in_a_chunk(length: int) -> None:
    """Lengths at, before and past a chunk's end, with the best entries last in the row."""
    rng = np.random.default_rng(length)
    plan = _plan(rng, [length], [2], [True])
    logits = torch.arange(BLOCKS * BLOCK).float()[None].clone()
    logits[:, length:] = float("nan")
    state = _agree(plan, logits)
    kept = plan.flags.blocks[0, 0].long() & 1
    best = torch.arange(length - TOPK, length)
    assert int(state.audit.tallies[0, 2, 2]) == int((kept[best // BLOCK] == 0).sum())


def test_equal_scores_go_to_the_lower_position() -> None:
    """With all scores equal the top-k are the first entries, and a later skipped block misses 0."""
    plan = _plan(np.random.default_rng(0), [BLOCKS * BLOCK], [1], [True])
    plan.flags.blocks[:] = torch.tensor([1, 0] + [0] * (BLOCKS - 2))
    state = _agree(plan, torch.zeros(1, BLOCKS * BLOCK))
    assert int(state.audit.tallies[0, 1, 2]) == TOPK - BLOCK


def test_rows_that_are_not_audited_are_not_read() -> None:
    """Their scores may be anything, their cells stay as they are."""
    plan = _plan(np.random.default_rng(1), [500, 900], [1, 2], [False, False])
    logits = torch.full((2, BLOCKS * BLOCK), float("nan"))
    state = _agree(plan, logits)
    assert not state.audit.tallies.any()
    assert not state.audit.histogram.any()


def test_a_state_without_audits_does_nothing() -> None:
    """Audits off: the operator returns before it looks at anything."""
    state = SpinState(SpinConfig(enabled=True), SHAPE)
    audit(state, 99, torch.zeros(0), _plan(np.random.default_rng(2), [200], [1], [True]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": LAYERS}, "layer must be 0 to 1, got 2"),
        ({"logits": torch.zeros(1, 64)}, r"logits must be float32 \[1, >= 1536\], got \[1, 64\]"),
        (
            {"logits": torch.zeros(1, 1536, dtype=torch.float64)},
            "logits must be float32 and contiguous",
        ),
        ({"impl": "cuda"}, "impl must be 'triton', 'numba', 'reference' or None, got 'cuda'"),
    ],
)
def test_bad_arguments_are_named(change: dict, said: str) -> None:
    """What was expected and what came stand in the error."""
    plan = _plan(np.random.default_rng(3), [200], [1], [True])
    arguments = {"layer": 0, "logits": torch.zeros(1, BLOCKS * BLOCK), "impl": None, **change}
    with pytest.raises(ValueError, match=said):
        audit(_state(), arguments["layer"], arguments["logits"], plan, impl=arguments["impl"])
