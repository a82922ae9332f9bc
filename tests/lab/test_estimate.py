"""Times, calibration and break-even of the model."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sglang_spin.lab.cost import published, traffic
from sglang_spin.lab.cost.calibration import calibrate, seconds
from sglang_spin.lab.cost.estimate import OURS, PAPER, SCENARIOS, SWAPPED, StepModel
from sglang_spin.lab.cost.gpus import GPUS
from sglang_spin.lab.cost.models import MODELS, V4_FLASH
from sglang_spin.lab.cost.traffic import Load, Work

PUBLISHED = StepModel(published.MODEL, published.GPU, published.LOAD)

steps = st.builds(
    StepModel,
    st.sampled_from(list(MODELS.values())),
    st.sampled_from(list(GPUS.values())),
    st.builds(Load, st.integers(1, 2_000_000), st.integers(1, 512), st.just(8), st.just("fp8")),
    st.sampled_from(["separate", "fused"]),
)
sparsities = st.floats(0, 0.99)


@pytest.mark.parametrize(("sparsity", "itl_ms"), [(0.4, 16.204), (0.5, 15.484)])
def test_published_itl(sparsity: float, itl_ms: float) -> None:
    """The paper's SPIN takes the published ITL within 0.5 % at both published sparsities."""
    itl = PUBLISHED.point(sparsity).outcomes[PAPER].itl
    assert itl * 1e3 == pytest.approx(itl_ms, rel=0.005)


def test_published_all_keep_itl() -> None:
    """Without SPIN and with all blocks the step takes the published 17.837 ms."""
    assert PUBLISHED.base(1981) * 1e3 == pytest.approx(17.837, rel=1e-9)


@pytest.mark.parametrize(("sparsity", "tokens"), [(0.4, 5218.65), (0.5, 5421.45)])
def test_published_throughput(sparsity: float, tokens: float) -> None:
    """One fitted factor brings output tokens/s within 0.5 % of both published figures."""
    flow = PUBLISHED.point(sparsity).outcomes[PAPER].tokens_per_second
    assert flow == pytest.approx(tokens, rel=0.005)


def test_calibration_by_hand() -> None:
    """7.2 ms a unit of sparsity, 1.247 ms fixed; 35.78 GB in 7.2 ms at 8 TB/s is 62.1 %."""
    fitted = calibrate()
    assert fitted.slope == pytest.approx(7.2e-3)
    assert fitted.fixed == pytest.approx(1.247e-3)
    moved = 96 * 126_750 * 21 * (132 + 4 + 4) + 96 * 21 * 512 * 4
    assert fitted.scorer_bandwidth == pytest.approx(moved / (7.2e-3 * 8e12))
    assert fitted.decode_share == pytest.approx(0.877, abs=0.001)


def test_paper_rest_by_hand() -> None:
    """16 B of slot traffic take 0.823 ms at the scorer's 4.97 TB/s; the rest is 0.424 ms."""
    state, rest = PUBLISHED.paper_parts()
    assert state.work.moved == 96 * 126_750 * 21 * 16
    assert (state.seconds, rest.seconds) == pytest.approx((0.823e-3, 0.424e-3), abs=1e-6)


def test_no_calibrated_term_is_negative() -> None:
    """What bytes explain never exceeds what was published."""
    assert min(dataclasses.astuple(calibrate())) > 0


def test_paper_breaks_even_at_seventeen_percent() -> None:
    """1.247 ms over 7.2 ms is 17.3 % of the blocks, up to the whole block."""
    share = PUBLISHED.break_even(PAPER)
    assert share == pytest.approx(1.247 / 7.2, abs=1 / 1981)


def test_our_overhead_by_hand() -> None:
    """At 40 %, fold, gather and separate observe move 0.765 GB; with 24 launches 0.226 ms."""
    moved = 2016 * (1981 * 28 + 1189 * 16 + (126_750 - 792 * 64) * 4)
    expected = moved / (calibrate().scorer_bandwidth * 8e12) + 24 * 3e-6
    assert PUBLISHED.overhead(OURS, 1189) == pytest.approx(expected)
    assert expected == pytest.approx(0.226e-3, abs=1e-6)


def test_swapped_keeps_the_papers_rest() -> None:
    """The cautious figure differs from ours by the paper's rest in place of our launches."""
    difference = PUBLISHED.overhead(SWAPPED, 1189) - PUBLISHED.overhead(OURS, 1189)
    assert difference == pytest.approx(PUBLISHED.paper_parts()[1].seconds - 24 * 3e-6)


def test_seconds_of_bytes() -> None:
    """8 GB at half of 8 TB/s take 2 ms."""
    assert seconds(Work(read=6e9, written=2e9), GPUS["b300"], 0.5) == pytest.approx(2e-3)


def test_seconds_of_flops_when_they_take_longer() -> None:
    """4.5 TFLOP at half of 4.5 PFLOP/s take 2 ms, however few the bytes."""
    work = Work(read=1.0, flops=4.5e12, precision="fp8")
    assert seconds(work, GPUS["b300"], 0.5) == pytest.approx(2e-3)


def test_fp4_index_is_cheaper_to_score() -> None:
    """An fp4 index takes 72 of the 136 bytes an entry, so scoring takes that share of the time."""
    fp4 = dataclasses.replace(
        PUBLISHED, load=dataclasses.replace(PUBLISHED.load, index_format="fp4")
    )
    ratio = fp4.parts(1981)[0].seconds / PUBLISHED.parts(1981)[0].seconds
    assert ratio == pytest.approx(72 / 136)


def test_short_context_never_pays() -> None:
    """Where the budget's floor keeps every block, nothing is skipped and no sparsity pays."""
    step = StepModel(V4_FLASH, GPUS["b300"], Load(2_000, 96, 8, "fp8"))
    assert [step.break_even(name) for name in SCENARIOS] == [None, None, None]


def test_a_request_without_one_entry_is_no_error() -> None:
    """Three tokens make no C4 entry: no blocks, nothing skipped, a finite ITL."""
    point = StepModel(V4_FLASH, GPUS["b300"], Load(3, 1, 8, "fp8")).point(0.4)
    assert (point.kept, point.skipped) == (0, 0.0)
    assert 0 < point.outcomes[OURS].itl < 1


@settings(deadline=None, max_examples=50)
@given(steps, sparsities, sparsities)
def test_more_sparsity_is_never_slower(step: StepModel, one: float, other: float) -> None:
    """In every scenario ITL does not rise and throughput does not fall with sparsity."""
    low, high = step.point(min(one, other)), step.point(max(one, other))
    for name in SCENARIOS:
        assert high.outcomes[name].itl <= low.outcomes[name].itl
        assert high.outcomes[name].tokens_per_second >= low.outcomes[name].tokens_per_second


@settings(deadline=None, max_examples=50)
@given(steps, st.integers(1, 100_000), st.integers(1, 100))
def test_more_work_takes_longer(step: StepModel, tokens: int, requests: int) -> None:
    """A longer context or a larger batch never makes an all-keep step shorter."""
    load = step.load
    longer = dataclasses.replace(
        step, load=dataclasses.replace(load, context=load.context + tokens)
    )
    wider = dataclasses.replace(step, load=dataclasses.replace(load, batch=load.batch + requests))
    assert longer.base(longer.blocks) >= step.base(step.blocks)
    assert wider.base(wider.blocks) >= step.base(step.blocks)


@settings(deadline=None, max_examples=50)
@given(steps, sparsities)
def test_itl_is_its_parts(step: StepModel, sparsity: float) -> None:
    """ITL is the sum of the printed parts, and speed-up its inverse against all-keep."""
    point = step.point(sparsity)
    outcome = point.outcomes[OURS]
    parts = step.parts(point.kept) + step.our_parts(point.kept)
    assert outcome.itl == pytest.approx(sum(part.seconds for part in parts))
    assert outcome.speedup * outcome.itl == pytest.approx(step.base(step.blocks))


@settings(deadline=None, max_examples=50)
@given(steps, st.sampled_from(list(SCENARIOS)))
def test_break_even_is_the_least_share_that_pays(step: StepModel, scenario: str) -> None:
    """At break-even ITL is at most all-keep's; with one block fewer skipped it is above."""
    share = step.break_even(scenario)
    assume(share is not None)
    skipped = round(share * step.blocks)
    dense = step.base(step.blocks)
    assert step.outcome(scenario, step.blocks - skipped).itl <= dense
    assert skipped > 0
    assert step.outcome(scenario, step.blocks - skipped + 1).itl > dense


@settings(deadline=None, max_examples=50)
@given(steps)
def test_fused_observe_is_never_dearer(step: StepModel) -> None:
    """Fusing the maxima into the scorer adds no time at any size."""
    fused, separate = (dataclasses.replace(step, observe=how) for how in ("fused", "separate"))
    kept = traffic.kept_blocks(step.model, step.load.context, 0.4)
    assert fused.overhead(OURS, kept) <= separate.overhead(OURS, kept)


@pytest.mark.parametrize(("gpu", "terabytes"), [("h200", 4.8), ("b200", 7.7), ("b300", 8.0)])
def test_scoring_time_follows_the_gpus_bandwidth(gpu: str, terabytes: float) -> None:
    """Scoring is bound by bytes on all three: 6.993 ms on a B300, longer as bandwidth is less."""
    part = dataclasses.replace(PUBLISHED, gpu=GPUS[gpu]).parts(1981)[0]
    assert part.basis == "bytes"
    assert part.seconds == pytest.approx(6.993e-3 * 8.0 / terabytes, abs=2e-6)
