"""The benchmark of the indexer step: its arithmetic, its memory, and that both steps are right."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.indexer_step import analysis, report, sizes, timing
from benchmarks.indexer_step.scene import Scene
from benchmarks.indexer_step.scorers import OperatorScorer, TorchTopK
from benchmarks.indexer_step.steps import DenseStep, SpinStep
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.lab.cost.models import V4_FLASH

PUBLISHED = sizes.Size(V4_FLASH, 96, 507_000)
SMALL = sizes.Size(
    dataclasses.replace(V4_FLASH, indexer_layers=2, index_heads=16, index_topk=100),
    batch=3,
    context=12 * BLOCK * 4,
)
PARTS = {"fold_select": 1.0, "plan": 0.0, "score": 50.0, "observe": 2.0, "topk": 9.0}


def _measured(sparsity: float, dense: list[float], spin: list[float]) -> analysis.Measured:
    return analysis.Measured("numba", "numba", "separate", sparsity, dense, spin, PARTS)


def _record(size: sizes.Size, sparsity: float, ratio: float) -> analysis.Record:
    floor = sizes.floor(size, size.kept(sparsity), "separate")
    samples = _measured(sparsity, [100.0] * 3, [100.0 * ratio] * 3)
    return analysis.record(size, samples, floor, 1e10)


def _cpu_size() -> sizes.Size:
    model = dataclasses.replace(V4_FLASH, indexer_layers=2)
    return sizes.Size(model, 8, 512_000)


def test_byte_floor_at_the_published_size() -> None:
    """96 rows of 507,000 tokens on V4-Flash: every part of the floor, counted by hand."""
    lines = 96 * 21
    kept_blocks = 1981 - 792
    kept = 126_750 - 792 * 64
    separate = sizes.floor(PUBLISHED, kept_blocks, "separate")
    assert separate.dense == lines * (126_750 * (132 + 4 + 4) + 512 * 4)
    assert separate.spin == lines * (kept * (132 + 4 + 4) + 512 * 4)
    assert separate.scorer == lines * kept * 136
    own = lines * (1981 * (12 + 12 + 4) + kept_blocks * 8)
    assert separate.own == own + lines * (kept * 4 + kept_blocks * 8)
    assert sizes.floor(PUBLISHED, kept_blocks, "fused").own == own + lines * kept_blocks * 8


def test_cpu_target_is_stated_for_the_quick_size() -> None:
    """--quick on a CPU measures 8 rows of 2,000 pages with 64 heads, and on a GPU 96 x 507K."""
    size = _cpu_size()
    assert (size.batch, size.blocks, size.model.index_heads) == analysis.CPU_SHAPE
    assert (96, PUBLISHED.blocks, 64) == analysis.GPU_SHAPE


@given(
    cost=st.floats(0.001, 0.4),
    gain=st.floats(0.5, 1.0),
    shares=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5, unique=True),
)
def test_break_even_of_a_straight_line(cost: float, gain: float, shares: list[float]) -> None:
    """Points on 1 + cost - gain * share break even at cost / gain, if a point reaches so far."""
    points = [(share, 1 + cost - gain * share) for share in [0.0, *shares]]
    found = analysis.break_even(points)
    if min(ratio for _, ratio in points) > 1:
        assert found is None
    else:
        assert found == pytest.approx(cost / gain, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], None),
        ([(0.0, 0.99), (0.4, 0.6)], 0.0),
        ([(0.4, 0.6)], None),
        ([(0.2, 1.0), (0.4, 0.8)], 0.2),
        ([(0.4, 0.7), (0.0, 1.1), (0.2, 0.9)], 0.1),
    ],
)
def test_break_even_at_the_ends(points: list[tuple[float, float]], expected: float | None) -> None:
    """Nothing is claimed outside the measured shares, and their order does not matter."""
    assert analysis.break_even(points) == pytest.approx(expected)


def test_ratio_is_of_neighbours() -> None:
    """A machine that slows down in the middle of a run changes both medians, not the ratio."""
    measured = _measured(0.4, [100.0, 100.0, 300.0], [60.0, 60.0, 180.0])
    found = analysis.record(_cpu_size(), measured, sizes.Floor(4e8, 2e8, 1e8, 2e8), 1e10)
    assert (found.ratio_low, found.ratio, found.ratio_high) == pytest.approx((0.6, 0.6, 0.6))
    assert (found.dense_ms, found.spin_ms, found.difference_ms) == pytest.approx((100, 60, -40))
    assert (found.own_ms, found.own_percent) == pytest.approx((3.0, 3.0))
    assert found.dense_fraction == pytest.approx(0.4)  # 40 ms at 10 GB/s
    assert found.spin_fraction == pytest.approx(0.5)  # 30 of 60 ms
    assert found.scorer_fraction == pytest.approx(0.4)  # 20 of 50 ms


@pytest.mark.parametrize(("ratio", "overhead", "met"), [(0.65, 0.02, True), (0.67, 0.04, False)])
def test_targets_are_judged_by_what_was_measured(ratio: float, overhead: float, met: bool) -> None:
    """The CPU targets are met or not met as the samples say."""
    size = _cpu_size()
    records = [_record(size, 0.0, 1 + overhead), _record(size, 0.4, ratio)]
    summary = analysis.summary(size, records, 21, 12.0)
    judged = {t.name: t.met for t in analysis.targets("cpu", records, [summary])}
    assert judged == {
        "SPIN step over dense step at sparsity 0.4": met,
        "overhead at sparsity 0, % of dense": met,
        "state, bytes a block, layer and row": True,
    }


@pytest.mark.parametrize("spin", [[95.0, 60.0, 150.0], [80.0, 80.0, 80.0]])
def test_noise_leaves_targets_undecided(spin: list[float]) -> None:
    """Equal steps that differ by more than a tenth, either way, decide no target of time."""
    size = _cpu_size()
    floor = sizes.floor(size, size.blocks, "separate")
    samples = _measured(0.0, [100.0] * 3, spin)
    records = [analysis.record(size, samples, floor, 1e10), _record(size, 0.4, 0.6)]
    summary = analysis.summary(size, records, 21, 12.0)
    judged = {t.name: t.met for t in analysis.targets("cpu", records, [summary])}
    assert list(judged.values()) == [None, None, True]
    text = report.text_targets(analysis.targets("cpu", records, [summary]))
    assert text.count("undecided, equal steps differ by") == 2


def test_targets_of_other_sizes_are_silent() -> None:
    """No promise was made for other sizes; what was not measured is neither met nor missed."""
    records = [_record(SMALL, 0.0, 1.0)]
    summary = analysis.summary(SMALL, records, 21, 12.0)
    assert analysis.targets("cpu", records, [summary]) == []
    at_size = [_record(PUBLISHED, 0.0, 1.1)]
    summary = analysis.summary(PUBLISHED, at_size, 21, 12.0)
    judged = {t.name: t.met for t in analysis.targets("cuda", at_size, [summary])}
    assert judged["SPIN step over dense step at sparsity 0.4"] is None
    assert judged["break-even share of blocks skipped"] is False


def test_sizes_that_do_not_fit_are_refused_with_the_reason() -> None:
    """The largest size needs 70 GB on V4-Flash; fewer layers of it fit, and one line says so."""
    large = sizes.Size(V4_FLASH, 96, 1_000_000)
    fit, refused = sizes.fitting([SMALL, large], 4, 24e9)
    assert fit == [SMALL]
    assert [size for size, _ in refused] == [large]
    assert "GB for 21 layers, 24.0 GB are allowed" in refused[0][1]
    fewer = sizes.fewer_layers(large, 4, 24e9)
    assert 0 < fewer.layers < 21
    assert sizes.memory_bytes(fewer, 4) <= 24e9
    assert sizes.fewer_layers(large, 4, 1e6) == large


def test_memory_estimate_covers_what_is_held() -> None:
    """Caches, logits, states and plans of a measurement are within the estimate."""
    scene = Scene(SMALL, torch.device("cpu"))
    scorer = OperatorScorer(scene, "reference")
    steps = [SpinStep(scene, scorer, TorchTopK(scene), share) for share in (0.0, 0.4)]
    held = sum(cache.nbytes for cache in scene.caches) + scorer.out.nbytes
    held += sum(step.state.nbytes + step.workspace.nbytes for step in steps)
    assert held < sizes.memory_bytes(SMALL, 2)


def test_dense_and_spin_select_the_same_without_sparsity() -> None:
    """At sparsity 0 both steps give attention the same slots, those of the best scores."""
    scene = Scene(SMALL, torch.device("cpu"))
    scorer = OperatorScorer(scene, "reference")
    dense = DenseStep(scene, scorer, TorchTopK(scene))
    spin = SpinStep(scene, scorer, TorchTopK(scene), 0.0)
    chosen = []
    for step in (dense, spin):
        step.warm_up()
        step.run()
        assert isinstance(step.topk, TorchTopK)
        chosen.append(step.topk.out.sort().values)
    assert torch.equal(*chosen)
    length = int(scene.first_length) + 2
    best = scorer.out[:, :length].topk(100).indices.sort().values
    slots = scene.table.gather(1, best // BLOCK) * BLOCK + best % BLOCK
    assert torch.equal(chosen[0], slots.int().sort().values)


def test_fused_maxima_leave_the_state_of_observe() -> None:
    """Block maxima from the scorer and from observe make the same history and the same plans."""
    scene = Scene(SMALL, torch.device("cpu"))
    scorer = OperatorScorer(scene, "reference")
    found = []
    for fused in (False, True):
        step = SpinStep(scene, scorer, TorchTopK(scene), 0.4, fused=fused)
        for _ in range(3):
            step.warm_up()
        for _ in range(4):
            step.run()
            step.check_steady()
        assert isinstance(step.state.history, BlockHistory)
        found.append((step.state.history.recent[:, 1:], step.workspace.blocks[..., : step.kept]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_a_step_that_is_not_steady_is_not_measured() -> None:
    """While blocks are cold all are kept, and such a step must not pass for a pruned one."""
    scene = Scene(SMALL, torch.device("cpu"))
    step = SpinStep(scene, OperatorScorer(scene, "reference"), TorchTopK(scene), 0.4)
    step.warm_up()
    with pytest.raises(RuntimeError, match="instead of"):
        step.check_steady()


def test_every_arm_is_first_equally_often() -> None:
    """The order turns: three arms in three repeats are each once first, and all have a sample."""
    order: list[str] = []

    def arm(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = timing.interleaved({name: partial(arm, name) for name in "abc"}, 3)
    assert sorted(order[::3]) == ["a", "b", "c"]
    assert samples == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}
