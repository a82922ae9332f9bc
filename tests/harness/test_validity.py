"""Which runs do not count."""

from array import array
from dataclasses import replace

import pytest

from harness.counters import CounterError, SpinCounters, spin_counters
from harness.looplag import LoopLag
from harness.record import RequestRecord
from harness.runrecord import ArmRun
from harness.validity import client_problems, request_problems, run_problems, spin_problems
from tests.harness.helpers import MS, make_spec, record

SPEC = make_spec(limits={"loop_lag_share": 0.2, "instant_gap_share": 0.5})
COUNTERS = SpinCounters("spin", 0.4, 10, 2, 0, 8, 0, (60, 60), (100, 100))


def sound_record(index: int = 0, **values: object) -> RequestRecord:
    """A record that passes the spec: 12 tokens, 10 ms apart."""
    made = record(
        [(10 + 10 * i, 1) for i in range(12)], prompt_tokens=288, cached_tokens=256, **values
    )
    made.index = index
    return made


def sound_run(arm: str = "spin") -> ArmRun:
    """A run without problems."""
    spin = COUNTERS if arm == "spin" else None
    records = [sound_record(0), sound_record(1)]
    return ArmRun(arm, 0, 0, expected_cached=256, records=records, spin=spin)


@pytest.mark.parametrize("arm", ["stock", "spin"])
def test_sound_run_has_no_problem(arm: str) -> None:
    """Nothing is reported for a run that is what the spec says."""
    assert run_problems(sound_run(arm), SPEC) == []


def test_t16_one_request_with_more_cache_than_the_others() -> None:
    """A request that finds more than the primed context in the cache is named."""
    run = sound_run()
    run.records[0].cached_tokens = 287
    assert run_problems(run, SPEC) == [
        "cached_tokens: 1 of 2 requests, the first is request 0: 287, expected 256"
    ]


def test_failed_request_is_reported_once() -> None:
    """A failed request is not listed again for the counts it could not reach."""
    broken = sound_record(error="no byte for 2 s", completion_tokens=3)
    found = request_problems([broken], prompt_tokens=288, output_tokens=12, expected_cached=256)
    assert found == ["failed: 1 of 1 requests, the first is request 0: no byte for 2 s"]


def test_t11_tokens_must_all_have_been_streamed() -> None:
    """A final count above what the chunks brought means lost chunks."""
    short = sound_record(completion_tokens=12)
    short.chunk_tokens[3] = 0
    found = request_problems([short], prompt_tokens=288, output_tokens=12, expected_cached=256)
    assert found == ["streamed tokens: 1 of 1 requests, the first is request 0: 11, expected 12"]


def test_t23_late_client_limits_the_run() -> None:
    """Loop lag above the allowed share of the median ITL marks the client as the limit."""
    run = sound_run()
    run.lag = LoopLag(array("q", [20 * MS, 40 * MS]), array("q", [1 * MS, 3 * MS]))
    (problem,) = client_problems(run, SPEC)
    assert problem.startswith("client_limited: the client's loop was late by 2.98 ms at p99")
    run.lag = LoopLag(array("q", [20 * MS]), array("q", [1 * MS]))
    assert client_problems(run, SPEC) == []


def test_t23_lag_while_bodies_go_out_is_outside_the_window() -> None:
    """Lag before the window, where large bodies are uploaded, does not count."""
    run = sound_run()
    run.lag = LoopLag(array("q", [5 * MS]), array("q", [500 * MS]))
    assert client_problems(run, SPEC) == []


def test_t24_buffered_replies_are_implausible() -> None:
    """Most chunks arriving at once with the one before is not a stream."""
    run = sound_run()
    for made in run.records:
        made.chunk_t_ns = array("q", [10 * MS] * 11 + [20 * MS])
    assert "implausible: 91% of the chunks" in client_problems(run, SPEC)[0]


def test_no_window_no_figure() -> None:
    """Streams that never overlap give no full batch, and the run says so."""
    run = sound_run()
    run.records[1].chunk_t_ns = array("q", [t + 500 * MS for t in run.records[1].chunk_t_ns])
    assert client_problems(run, SPEC)[0].startswith("window: there is no full_batch window")


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        (None, "no spin block"),
        (replace(COUNTERS, steps=0), "did not engage"),
        (replace(COUNTERS, kept_blocks=(64, 64)), "realised sparsity 0.360"),
        (replace(COUNTERS, kept_blocks=(56, 56)), "realised sparsity 0.440"),
        (replace(COUNTERS, target_sparsity=0.5), "target sparsity 0.5, expected 0.4"),
        (replace(COUNTERS, policy="dense"), "policy dense, expected spin"),
        (replace(COUNTERS, seen_blocks=(0, 0), kept_blocks=(0, 0)), "no block was counted"),
    ],
)
def test_spin_arm_that_is_not_spin(counters: SpinCounters | None, words: str) -> None:
    """An arm that says SPIN counts only if its server did it, at the sparsity it was asked for."""
    found = spin_problems(SPEC.arms["spin"], counters)
    assert len(found) == 1
    assert words in found[0]


def test_sparsity_within_the_tolerance() -> None:
    """0.03 off the target is allowed by default."""
    near = replace(COUNTERS, kept_blocks=(575, 575), seen_blocks=(1000, 1000))
    assert spin_problems(SPEC.arms["spin"], near) == []


def test_stock_arm_that_runs_spin() -> None:
    """A spin block in the baseline is a problem."""
    assert "must be stock" in spin_problems(SPEC.arms["stock"], COUNTERS)[0]


def test_t29_counters_that_fall() -> None:
    """A counter that falls or changes its layers means another server answered."""
    with pytest.raises(CounterError, match="restarted"):
        replace(COUNTERS, steps=3).since(COUNTERS)
    with pytest.raises(CounterError, match="layers"):
        replace(COUNTERS, kept_blocks=(1,), seen_blocks=(1,)).since(COUNTERS)


def test_window_of_counters() -> None:
    """Shares come from the difference of two snapshots, weighted by blocks over layers and runs."""
    later = replace(COUNTERS, steps=14, kept_blocks=(90, 110), seen_blocks=(200, 200))
    delta = later.since(COUNTERS)
    assert delta.steps == 4
    assert delta.kept_share == [0.3, 0.5]
    assert delta.realised_sparsity == pytest.approx(0.6)
    assert delta.plus(COUNTERS).kept_share == [0.45, 0.55]


def rank(**changes: object) -> dict[str, object]:
    """A spin block as a server reports it."""
    block: dict[str, object] = {
        "policy": "spin", "target_sparsity": 0.4, "steps": 1, "rows_seeded": 1, "rows_cold": 0,
        "blocks_seeded": 1, "blocks_cold": 0, "kept_blocks": [3, 3], "seen_blocks": [5, 5],
    }  # fmt: skip
    return block | changes


def test_t29_ranks_are_summed() -> None:
    """Counters of all ranks add up; blocks of stock servers are None."""
    states = [{"spin": rank()}, {"spin": rank(steps=4)}]
    total = spin_counters({"internal_states": states})
    assert total is not None
    assert total.steps == 5
    assert total.seen_blocks == (10, 10)
    assert spin_counters({"internal_states": [{}]}) is None
    assert spin_counters({}) is None


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([{"spin": rank()}, {}], "only 1 of 2 ranks"),
        ([{"spin": rank()}, {"spin": rank(target_sparsity=0.5)}], "different SPIN settings"),
        ([{"spin": {"policy": "spin"}}], "no usable 'target_sparsity'"),
    ],
)
def test_unusable_spin_blocks(states: list[dict[str, object]], words: str) -> None:
    """Missing ranks, disagreeing ranks and missing fields are errors that say what is missing."""
    with pytest.raises(CounterError, match=words):
        spin_counters({"internal_states": states})


def test_t23_client_that_stood_still_while_bodies_went_out() -> None:
    """One long stop, which no percentile shows, limits the run, and the uploads are named."""
    run = sound_run()
    for number, made in enumerate(run.records):
        made.uploaded_ns = made.sent_ns + (60 * MS if number else 1)
    start, end = run.window(SPEC) or (0, 0)
    for t in range(start, end, (end - start) // 500):
        run.lag.t_ns.append(t)
        run.lag.lag_ns.append(0)
    run.lag.lag_ns[250] = (end - start) // 4
    (problem,) = client_problems(run, SPEC)
    assert problem == (
        "client_limited: the client's loop stood still for 25.0% of the window "
        "while 1 bodies went out"
    )
