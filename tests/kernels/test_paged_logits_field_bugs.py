"""Bugs that other paged indexers had, each as a test of ours. A1-A13 and C24-C27 name the cases."""

from __future__ import annotations

import mmap
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import SUSPECT
from sglang_spin.kernels.paged_logits import paged_logits
from sglang_spin.kernels.paged_logits.layout import DIM, FP4, FP8, PageFormat
from tests.kernels.paged_checks import assert_within_budget
from tests.kernels.paged_scene import UNTOUCHED, Scene, make_scene, pad_heads, random_cache

formats = pytest.mark.parametrize("page", [FP8, FP4], ids=lambda page: page.name)
MAP_NORESERVE = 0x4000  # Linux; Python 3.11 does not name it


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a1_garbage_past_the_length_changes_nothing(poison: float) -> None:
    """Two scorers filled the tail differently and a reader believed it: ours leaves it alone."""
    scene = make_scene(FP8, [70, 1, 127], heads=16)
    clean = scene.run("triton", maxima=True)
    for row, length in enumerate(scene.lengths.tolist()):
        page = scene.page_table[row, (length - 1) // BLOCK].item()
        used = (length - 1) % BLOCK + 1
        scene.cache[page, used * DIM : BLOCK * DIM] = 0x7F  # NaN in e4m3
        scales = scene.cache[page, FP8.scales_at :].clone().view(torch.float32)
        scales[used:] = poison
        scene.cache[page, FP8.scales_at :] = scales.view(torch.uint8)
    poisoned = scene.run("triton", maxima=True)
    assert torch.equal(poisoned.logits, clean.logits)
    assert poisoned.maxima is not None
    assert clean.maxima is not None
    assert torch.equal(poisoned.maxima, clean.maxima)
    assert (poisoned.logits[~scene.inside()] == UNTOUCHED).all()


@pytest.mark.parametrize(
    ("bad", "suspect"), [(float("nan"), True), (float("inf"), True), (1e32, True), (1e20, False)]
)
def test_a2_a_block_with_a_score_that_is_no_number_is_suspect(bad: float, suspect: bool) -> None:
    """NaN logits once became page indices: here such a block is marked, and only that block."""
    scene = make_scene(FP8, [200], heads=16)
    scene.weights.abs_()
    page = scene.page_table[0, 1].item()
    scales = scene.cache[page, FP8.scales_at :].clone().view(torch.float32)
    scales[17] = bad
    scene.cache[page, FP8.scales_at :] = scales.view(torch.uint8)
    maxima = scene.run("triton", maxima=True).maxima
    assert maxima is not None
    assert (maxima[0, 1] == SUSPECT).item() is suspect
    assert (maxima[0, [0, 2, 3]] < 1e10).all()


@formats
@pytest.mark.parametrize("length", [63, 64, 65, 4095, 4096, 4097])
def test_a3_lengths_around_64_pages_of_64(page: PageFormat, length: int) -> None:
    """GLM-5.2 turned to garbage from 4096 tokens on: lengths around 64 pages of 64 are exact."""
    assert_within_budget(make_scene(page, [length], heads=16))


@formats
@pytest.mark.parametrize("lengths", [[0], [0, 0, 0, 0], [0, 3, 0, 0], [5, 0]])
def test_a4_zero_lengths(page: PageFormat, lengths: list[int]) -> None:
    """V4 has no entry before token 4, and such a batch was read out of bounds: ours reads none."""
    assert_within_budget(make_scene(page, lengths, heads=16))


def test_a5_strided_lengths_are_refused() -> None:
    """Lengths sliced out of a verify tensor were read as if contiguous: refused, with the cure."""
    scene = make_scene(FP8, [10, 20, 30], heads=16)
    strided = torch.stack((scene.lengths, scene.lengths), 1)[:, 0]
    with pytest.raises(ValueError, match=r"lengths must be contiguous.*lengths\.contiguous\(\)"):
        replace(scene, lengths=strided).run("triton")


@formats
@pytest.mark.parametrize("next_n", [1, 2, 3, 4, 5])
def test_a6_every_number_of_verify_rows(page: PageFormat, next_n: int) -> None:
    """An odd number of verify rows once met unpopulated memory: one to five rows share a table."""
    lengths = [n + i + 1 for n in (126, 0, 63) for i in range(next_n)]
    assert_within_budget(make_scene(page, lengths, heads=16, next_n=next_n))


def test_a7_mixed_lengths_in_one_batch() -> None:
    """A batch of two unlike sequences once went out of bounds: long, short and empty ones mix."""
    assert_within_budget(make_scene(FP8, [1300, 1, 0, 64, 513], heads=32))


@formats
def test_a8_every_token_of_a_page_has_its_own_scale(page: PageFormat) -> None:
    """A reader took block-planar pages for interleaved records; equal scales in a page hid it."""
    scene = make_scene(page, [BLOCK], heads=16)
    got = assert_within_budget(scene).logits[0]
    own = scene.page_table[0, 0].item()
    raw = scene.cache[own, page.scales_at :].view(BLOCK, -1)
    assert len({bytes(entry.tolist()) for entry in raw}) > BLOCK // 2
    assert got.unique().numel() > BLOCK // 2


def test_a9_layers_packed_in_one_buffer_keep_their_offset() -> None:
    """A dropped storage offset made all layers read layer 0: each layer finds its own needle."""
    layers, pages, length = 3, 40, 37 * BLOCK
    rng = torch.Generator().manual_seed(3)
    packed = torch.stack([random_cache(FP8, pages, rng) for _ in range(layers)], 1)
    scene = make_scene(FP8, [length], heads=16)
    for layer in range(layers):
        view = packed[:, layer]
        needle = 5 + 11 * layer
        page = scene.page_table[0, needle].item()
        scales = view[page, FP8.scales_at :].clone().view(torch.float32) * 1000
        view[page, FP8.scales_at :] = scales.view(torch.uint8)
    for layer in range(layers):
        positive = replace(scene, cache=packed[:, layer], weights=scene.weights.abs())
        maxima = assert_within_budget(positive).maxima
        assert maxima is not None
        assert maxima[0].argmax().item() == 5 + 11 * layer


@pytest.mark.parametrize(("heads", "padded"), [(8, 16), (24, 32)])
@formats
def test_a10_odd_head_counts_are_refused_and_padding_is_exact(
    page: PageFormat, heads: int, padded: int
) -> None:
    """DeepGEMM failed late on 8 or 24 heads: ours refuses them, and heads of zero add nothing."""
    full = make_scene(page, [100, 65], heads=padded)
    scales = None if full.q_scales is None else full.q_scales[:, :heads].contiguous()
    few = replace(
        full,
        q=full.q[:, :heads].contiguous(),
        q_scales=scales,
        weights=full.weights[:, :heads].contiguous(),
    )
    with pytest.raises(ValueError, match=f"q has {heads} heads.*zeros to {padded} heads"):
        few.run("triton")
    assert_within_budget(replace(pad_heads(few, padded), q_scales=full.q_scales))


def test_a11_rows_never_see_another_requests_scores() -> None:
    """Ragged rows read a neighbour's logits: two requests of disjoint score ranges stay apart."""
    scene = make_scene(FP8, [150, 300], heads=16)
    scene.weights[0], scene.weights[1] = scene.weights[0].abs(), -scene.weights[1].abs()
    logits = scene.run("triton").logits
    assert (logits[0, :150] > 0).all()
    assert (logits[1, :300] < 0).all()
    assert (logits[0, 150:] == UNTOUCHED).all()


def test_a13_nothing_is_allocated_when_outputs_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits 1M entries wide ran out of memory: ours are the caller's, as narrow as due."""
    scene = make_scene(FP8, [130], heads=16, spare_blocks=16384 - 3)
    out, maxima = torch.full((1, 200), UNTOUCHED), torch.full((1, 4), UNTOUCHED)

    def refuse(*_: object, **__: object) -> Tensor:
        raise AssertionError("the operator allocated")

    with monkeypatch.context() as patch:
        for name in ("empty", "zeros", "full"):
            patch.setattr(torch, name, refuse)
        paged_logits(
            scene.q,
            scene.cache,
            scene.weights,
            scene.lengths,
            scene.page_table,
            out=out,
            maxima=maxima,
            impl="triton",
        )
    assert torch.equal(out[0, :130], scene.run("triton").logits[0, :130])
    assert (out[0, 130:] == UNTOUCHED).all()


@pytest.mark.parametrize("width", [64, 100, 128, 191])
def test_logits_narrower_than_the_length_bound_the_work(width: int) -> None:
    """A length that the logits cannot hold writes no further than they reach."""
    scene = make_scene(FP8, [190, 64], heads=16)
    assert_within_budget(scene, width=width)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_table_narrower_than_the_length_bounds_the_work(blocks: int) -> None:
    """A length past the end of its table reads no entry that the table does not have."""
    scene = make_scene(FP8, [190], heads=16)
    whole = scene.run("triton").logits
    narrow = replace(scene, page_table=scene.page_table[:, :blocks].contiguous())
    logits = narrow.run("triton", width=256).logits
    assert torch.equal(logits[0, : blocks * BLOCK], whole[0, : blocks * BLOCK])
    assert (logits[0, blocks * BLOCK :] == UNTOUCHED).all()


def far_cache(page: PageFormat, pages: int, stride: int) -> Tensor:
    """Virtual memory as a pool of pages, `stride` bytes apart: only what is written is real."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    region = mmap.mmap(-1, pages * stride, flags=flags)
    flat = torch.frombuffer(region, dtype=torch.uint8)
    return flat.as_strided((pages, page.page_bytes), (stride, 1))


def moved_to(scene: Scene, cache: Tensor, far: list[int]) -> Scene:
    """The same scene with its first table's blocks at the page ids `far`."""
    table = scene.page_table.clone()
    for block, page in enumerate(far):
        cache[page] = scene.cache[scene.page_table[0, block].item()]
        table[0, block] = page
    return replace(scene, cache=cache, page_table=table)


FAR = {
    "c24: page * 8448 passes 2**31 at page 254,200": (FP8, 254_210, FP8.page_bytes, 254_203),
    "c24: page * 4352 passes 2**31 at page 493,448": (FP4, 493_460, FP4.page_bytes, 493_450),
    "c25: packed layers, 1.04 MB apart, page 2,066": (FP8, 2_080, 1_040_384, 2_066),
    "c26: packed layers, FP4, page 4,200": (FP4, 4_210, 524_288, 4_200),
}


@pytest.mark.parametrize("where", FAR)
def test_far_pages(where: str) -> None:
    """Offsets past 2**31 overflowed int32 in four engines: a far page scores as a near one does."""
    page, pages, stride, far = FAR[where]
    assert far * stride > 2**31
    scene = make_scene(page, [3 * BLOCK - 5], heads=16)
    near = scene.run("triton").logits
    moved = moved_to(scene, far_cache(page, pages, stride), [far, 1, far + 3])
    assert torch.equal(moved.run("triton").logits, near)


@formats
def test_c27_moving_a_token_moves_its_score(page: PageFormat) -> None:
    """Tokens in wrong slots of a page pass any checksum: a permuted page permutes its scores."""
    scene = make_scene(page, [BLOCK], heads=16)
    before = scene.run("triton").logits[0, :BLOCK]
    order = torch.randperm(BLOCK, generator=torch.Generator().manual_seed(1))
    own = scene.cache[scene.page_table[0, 0].item()]
    keys, scales = own[: page.scales_at].view(BLOCK, -1), own[page.scales_at :].view(BLOCK, -1)
    keys[:], scales[:] = keys[order].clone(), scales[order].clone()
    assert torch.equal(scene.run("triton").logits[0, :BLOCK], before[order])
