"""Is a run what the spec says? Every check gives a line for the reader; no line means valid."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from harness.counters import SpinCounters
from harness.expectations import Expected, expectations
from harness.metrics import Window, instant_gap_share, itl_token_ns, percentile, pooled
from harness.record import RequestRecord
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.spec_arm import Arm

Check = Callable[[RequestRecord, Expected], str | None]


def run_problems(run: ArmRun, spec: Spec) -> list[str]:
    """All problems of one run, without its label."""
    problems = each_request_problems(run.records, expectations(run, spec))
    problems += spin_problems(spec.arms[run.arm], run.spin)
    problems += client_problems(run, spec)
    return problems


def request_problems(
    records: Sequence[RequestRecord],
    *,
    prompt_tokens: int,
    output_tokens: int,
    expected_cached: int,
) -> list[str]:
    """Problems of requests of which the same is expected."""
    one = Expected(prompt_tokens, output_tokens, (expected_cached, expected_cached))
    return each_request_problems(records, [one] * len(records))


def each_request_problems(
    records: Sequence[RequestRecord], expected: Sequence[Expected]
) -> list[str]:
    """Problems of the requests, one line per kind, with the first case as the example."""
    checks: dict[str, Check] = {
        "failed": lambda r, _: _failure(r),
        "prompt_tokens": lambda r, e: _differs(r.prompt_tokens, e.prompt_tokens),
        "completion_tokens": lambda r, e: _differs(r.completion_tokens, e.output_tokens),
        "streamed tokens": lambda r, _: _streamed(r),
        "cached_tokens": lambda r, e: _cached(r, e.cached),
    }
    problems: list[str] = []
    sound = list(zip(records, expected, strict=True))
    for name, check in checks.items():
        found = [(record, text) for record, e in sound if (text := check(record, e)) is not None]
        if found:
            example, text = found[0]
            problems.append(
                f"{name}: {len(found)} of {len(records)} requests, "
                f"the first is request {example.index}: {text}"
            )
        if name == "failed":
            failed = {record.index for record, _ in found}
            sound = [pair for pair in sound if pair[0].index not in failed]
    return problems


def _failure(record: RequestRecord) -> str | None:
    """A stream counts only when it ended as asked: length reached, then [DONE]."""
    if record.error is not None:
        return record.error
    if record.finish_reason != "length":
        return f"finish_reason {record.finish_reason!r}, expected 'length'"
    if not record.saw_done:
        return "the stream ended without [DONE]"
    if not record.chunk_t_ns:
        return "no token was seen to arrive"
    return None


def _differs(got: int | None, expected: int) -> str | None:
    if got == expected:
        return None
    return f"{'not reported' if got is None else got}, expected {expected}"


def _streamed(record: RequestRecord) -> str | None:
    if record.itl_basis == "chunk":
        return None
    return _differs(record.streamed_tokens, record.completion_tokens or 0)


def _cached(record: RequestRecord, expected: tuple[int, int]) -> str | None:
    if record.cached_tokens is None:
        return "not reported, so unverifiable; start the server with --enable-cache-report"
    least, most = expected
    if least == most:
        return _differs(record.cached_tokens, least)
    if least <= record.cached_tokens <= most:
        return None
    return f"{record.cached_tokens}, the trace allows {least} to {most}"


def spin_problems(arm: Arm, spin: SpinCounters | None) -> list[str]:
    """Problems of what the server says about SPIN, against what the arm expects of it."""
    if arm.spin is None:
        return [] if spin is None else ["spin: the server of this arm must be stock, but runs SPIN"]
    if spin is None:
        return ["spin: /server_info has no spin block, the server does not run SPIN"]
    return list(_spin_use_problems(arm, spin))


def _spin_use_problems(arm: Arm, spin: SpinCounters) -> Iterator[str]:
    expect = arm.spin
    assert expect is not None
    if spin.policy != expect.policy:
        yield f"spin: policy {spin.policy}, expected {expect.policy}"
    if abs(spin.target_sparsity - expect.target_sparsity) > 1e-6:
        yield f"spin: target sparsity {spin.target_sparsity:g}, expected {expect.target_sparsity:g}"
    if spin.steps <= 0:
        yield "spin: no step was counted during the load, SPIN did not engage"
        return
    realised = spin.realised_sparsity
    if realised is None:
        yield "spin: no block was counted during the load"
    elif abs(realised - expect.target_sparsity) > expect.tolerance:
        yield (
            f"spin: realised sparsity {realised:.3f}, more than {expect.tolerance:g} off the "
            f"target {expect.target_sparsity:g}"
        )


def client_problems(run: ArmRun, spec: Spec) -> list[str]:
    """Was it the client that was measured?"""
    problems: list[str] = []
    instant = instant_gap_share(run.records)
    if instant > spec.limits.instant_gap_share:
        problems.append(
            f"implausible: {instant:.0%} of the chunks came at once with the one before, "
            "the replies are buffered on their way"
        )
    window = run.window(spec)
    if window is None:
        return [
            *problems,
            f"window: there is no {spec.window} window, too few tokens came together",
        ]
    gaps = pooled([itl_token_ns(record, window) for record in run.records])
    median = percentile(gaps, 50)
    if median is None:
        return [*problems, f"window: no inter-token gap lies in the {spec.window} window"]
    worst = percentile(np.array(run.lag.within(*window), dtype=np.float64), 99) or 0.0
    # a median of zero is the rule above's matter: no lag could be small against it
    if median and worst > spec.limits.loop_lag_share * median:
        problems.append(
            f"client_limited: the client's loop was late by {worst / 1e6:.2f} ms at p99, more than "
            f"{spec.limits.loop_lag_share:.0%} of the median ITL of {median / 1e6:.2f} ms"
        )
    # one long stop, as while a large body is encoded, is a single sample and in no percentile
    patience = max(1.0, spec.limits.loop_lag_share) * median
    late = run.lag.late_share(*window, above_ns=patience) if median else 0.0
    if late > spec.limits.loop_late_share:
        problems.append(
            f"client_limited: the client's loop stood still for {late:.1%} of the window"
            + _uploads_inside(run.records, window)
        )
    return problems


def client_was_the_limit(problems: Sequence[str]) -> bool:
    """Is that all that was wrong? Then a quieter moment gives a run that counts."""
    return bool(problems) and all(problem.startswith("client_limited") for problem in problems)


def _uploads_inside(records: Sequence[RequestRecord], window: Window) -> str:
    """Names the usual cause, if it can be one."""
    late = [r for r in records if r.sent_ns < window[1] and r.uploaded_ns > window[0]]
    return f" while {len(late)} bodies went out" if late else ""
