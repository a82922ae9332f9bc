"""Values of the paged scorer: the Triton kernel against the torch reference and an fp64 oracle."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.kernels.paged_logits import triton as kernel
from sglang_spin.kernels.paged_logits.layout import FP4, FP8, PageFormat
from tests.kernels.paged_checks import assert_within_budget
from tests.kernels.paged_scene import Scene, make_scene

formats = pytest.mark.parametrize("page", [FP8, FP4], ids=lambda page: page.name)


@formats
@pytest.mark.parametrize("heads", [16, 32, 64])
def test_within_twice_the_eager_error(page: PageFormat, heads: int) -> None:
    """Every head count and page format stays within the error budget, maxima included."""
    assert_within_budget(make_scene(page, [200, 64, 1, 300], heads=heads))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    page=st.sampled_from([FP8, FP4]),
    lengths=st.lists(st.integers(0, 400), min_size=1, max_size=5),
    next_n=st.integers(1, 5),
    heads=st.sampled_from([16, 32, 64]),
    spare=st.integers(0, 3),
    programs=st.integers(1, 9),
    seed=st.integers(0, 2**16),
)
def test_any_shape(
    page: PageFormat,
    lengths: list[int],
    next_n: int,
    heads: int,
    spare: int,
    programs: int,
    seed: int,
) -> None:
    """Any mix of lengths, verify rows, table widths and splits stays within the error budget."""
    rows = [max(0, n - i) for n in lengths for i in reversed(range(next_n))]
    scene = make_scene(page, rows, heads=heads, next_n=next_n, spare_blocks=spare, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "INTERPRETED_PROGRAMS", programs)
        assert_within_budget(scene)


def test_fp4_without_a_block_scaled_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chips that widen FP4 themselves score as those that multiply it: within the same budget."""
    monkeypatch.setattr(kernel, "product_of", lambda _: "fp4 as fp32")
    assert_within_budget(make_scene(FP4, [200, 64, 1, 300], heads=32))


@pytest.mark.parametrize("product", ["fp4", "fp4 as fp32"])
@pytest.mark.parametrize("scale", [1, 2, 64, 190])
def test_extreme_fp4_scales(scale: int, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very small and very large ue8m0 scales of keys mean the same as in the reference."""
    scene = make_scene(FP4, [64], heads=16)
    scene.cache[:, FP4.scales_at :] = scale
    monkeypatch.setattr(kernel, "product_of", lambda _: product)
    assert_within_budget(scene)


def test_shares_of_the_work_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the pages are shared among programs, the bits are the same."""
    scene = make_scene(FP8, [700, 0, 65, 1, 320], heads=16)
    monkeypatch.setattr(kernel, "INTERPRETED_PROGRAMS", 1)
    alone = scene.run("triton", maxima=True)
    assert alone.maxima is not None
    for programs in (2, 5, 40):
        monkeypatch.setattr(kernel, "INTERPRETED_PROGRAMS", programs)
        shared = scene.run("triton", maxima=True)
        assert shared.maxima is not None
        assert torch.equal(shared.logits, alone.logits)
        assert torch.equal(shared.maxima, alone.maxima)


@formats
def test_rows_do_not_depend_on_their_batch(page: PageFormat) -> None:
    """A row alone gets the bits it gets among others, with its own table or a shared one."""
    scene = make_scene(page, [130, 131, 132, 70, 71, 72], heads=16, next_n=3)
    batch = scene.run("triton").logits
    for r in range(6):
        scales = None if scene.q_scales is None else scene.q_scales[r : r + 1]
        alone = Scene(
            scene.q[r : r + 1],
            scales,
            scene.cache,
            scene.weights[r : r + 1],
            scene.lengths[r : r + 1],
            scene.page_table[r // 3 : r // 3 + 1],
        )
        assert torch.equal(alone.run("triton").logits[0], batch[r])


def test_the_most_rows_one_call_takes_are_walked_in_order() -> None:
    """Rows of zero length between live ones are stepped over, up to a few hundred of them."""
    lengths = [0] * 300
    lengths[0], lengths[150], lengths[299] = 64, 1, 65
    assert_within_budget(make_scene(FP8, lengths, heads=16))
