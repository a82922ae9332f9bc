"""Are the arms of a campaign the same work, counted the same way?"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import numpy as np

from harness.metrics import repetition_ratio, tokens_per_chunk
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.spec_arm import BASELINE
from harness.spec_workload import TraceWork

# answers that loop select other blocks than answers that do not; told even where no limit is set
TELLING_REPETITION_GAP = 0.2
# speculation that is accepted more often, or an arm whose steps left the CUDA graph, is no gain of
# the indexer
TELLING_CHUNK_GAP = 0.1
TELLING_GRAPH_GAP = 0.1


def comparison_problems(runs: Sequence[ArmRun], spec: Spec) -> list[str]:
    """Why the arms cannot be compared, although each run is what the spec says."""
    problems = _basis_problems(runs, spec)
    if isinstance(spec.workload, TraceWork):
        problems += _gap_problems(
            runs, spec, "cached tokens as a share of the prompts", _cached_share,
            spec.limits.cached_gap, "limits.cached_gap",
        )  # fmt: skip
    if spec.limits.repetition_gap is not None:
        problems += _gap_problems(
            runs, spec, "share of distinct 4-grams in the answers", _distinct_share,
            spec.limits.repetition_gap, "limits.repetition_gap",
        )  # fmt: skip
    return problems


def comparison_notes(runs: Sequence[ArmRun], spec: Spec) -> list[str]:
    """Differences that a reader should know of."""
    told = [
        ("tokens per chunk", _tokens_per_chunk, TELLING_CHUNK_GAP),
        ("decode steps in a CUDA graph (sglang:is_cuda_graph)", _cuda_graph, TELLING_GRAPH_GAP),
    ]
    if spec.limits.repetition_gap is None:
        told.append(
            ("share of distinct 4-grams in the answers", _distinct_share, TELLING_REPETITION_GAP)
        )
    return [
        note
        for what, of_run, gap in told
        for note in _gap_problems(runs, spec, what, of_run, gap, "told above a gap of")
    ]


def _basis_problems(runs: Sequence[ArmRun], spec: Spec) -> list[str]:
    bases = {
        arm: sorted({str(r.itl_basis) for run in runs if run.arm == arm for r in run.records})
        for arm in spec.arms
    }
    present = {arm: basis for arm, basis in bases.items() if basis}
    if len({tuple(basis) for basis in present.values()}) < 2:
        return []
    shown = ", ".join(f"{arm} {'/'.join(basis)}" for arm, basis in present.items())
    return [f"itl_basis: the arms count tokens differently and cannot be compared: {shown}"]


def _gap_problems(
    runs: Sequence[ArmRun],
    spec: Spec,
    what: str,
    of_run: Callable[[ArmRun], float | None],
    limit: float,
    limit_name: str,
) -> list[str]:
    means = {arm: _mean(of_run(run) for run in runs if run.arm == arm) for arm in spec.arms}
    stock = means[BASELINE]
    return [
        f"{what}: {arm} {mean:.3f}, {BASELINE} {stock:.3f}; the arms do different work "
        f"({limit_name} {limit:g})"
        for arm, mean in means.items()
        if mean is not None and stock is not None and abs(mean - stock) > limit
    ]


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _cached_share(run: ArmRun) -> float | None:
    prompts = sum(record.prompt_tokens or 0 for record in run.records)
    return sum(record.cached_tokens or 0 for record in run.records) / prompts if prompts else None


def _tokens_per_chunk(run: ArmRun) -> float | None:
    return _mean(tokens_per_chunk(record) for record in run.records)


def _cuda_graph(run: ArmRun) -> float | None:
    """1 if any reading of the load says so; None where the server does not say."""
    found = list(run.telemetry.select("sglang:is_cuda_graph").values())
    return float(np.nanmax(found)) if found else None


def _distinct_share(run: ArmRun) -> float | None:
    return _mean(repetition_ratio(record.output_ids) for record in run.records)
