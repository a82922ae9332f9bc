"""The Triton form through lives of requests whose steps verify drafts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.kernels.fold_select import triton as kernel
from sglang_spin.kernels.fold_select import verify
from tests.core.verify_life import SHAPE, VerifyLife
from tests.kernels.twins import Twins


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several chunks without rows of thousands of blocks."""
    monkeypatch.setattr(kernel, "CHUNK", 8)
    monkeypatch.setattr(verify, "CHUNK", 8)


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "spin", "prev-iter", "random", "dense"]),
    update=st.sampled_from(["accepted", "accepted", "first"]),
    audit_every=st.sampled_from([0, 3]),
)
def test_every_step_of_a_life_is_the_same_bits(
    seed: int, policy: str, update: str, audit_every: int
) -> None:
    """Decode and verify steps with random acceptance: state and plans equal the reference's."""
    config = SpinConfig(
        enabled=True,
        policy=policy,
        sparsity=0.5,
        verify_update=update,
        audit_every=audit_every,
    )
    life = VerifyLife(seed, Twins(config, SHAPE))
    life.open()
    for _ in range(9):
        life.act()


@pytest.mark.parametrize("offset", [-3, -1, 0])
def test_rows_that_cross_into_a_new_page(offset: int) -> None:
    """Acceptance of every length at a page border, where the rows see different newest blocks."""
    life = VerifyLife(1, Twins(SpinConfig(enabled=True, sparsity=0.5), SHAPE))
    life.engine.open(1, 9 * BLOCK + offset, [])
    for accepted in (2, 4, 1, 3):
        life.verify([1], 4, {1: accepted})
    life.verify([1], 1, {1: 1})
