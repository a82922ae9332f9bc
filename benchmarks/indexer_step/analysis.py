"""From samples to figures: ratios of neighbouring samples, break-even, targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.indexer_step.sizes import Floor, Size

CPU_SHAPE = (8, 2000, 64)  # rows, pages, heads of the CPU targets
GPU_SHAPE = (96, 1981, 64)  # 96 rows of 507,000 tokens on V4
NOISE_LIMIT = 0.1


@dataclass(frozen=True)
class Record:
    """One sparsity at one size, with one scorer; a line of the CSV.

    Times in milliseconds, medians over repeats. ratio: SPIN's step over the dense step, the median
    over repeats of samples taken next to each other; ratio_low, ratio_high: its quartiles.
    difference_ms: the same of SPIN's step less the dense step. own_ms: SPIN's operators
    (fold_select, observe), timed one by one; own_percent: of the dense step. *_bytes: the floor
    (sizes.Floor). *_fraction: floor over time, in units of the copy bandwidth. parts_ms: parts of
    SPIN's step, timed one by one.
    """

    scorer: str
    topk: str
    observe: str
    batch: int
    context: int
    entries: int
    blocks: int
    layers: int
    heads: int
    sparsity: float
    kept_blocks: int
    skipped_share: float
    dense_ms: float
    spin_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    difference_ms: float
    own_ms: float
    own_percent: float
    dense_bytes: float
    spin_bytes: float
    own_bytes: float
    dense_fraction: float
    spin_fraction: float
    scorer_fraction: float
    parts_ms: dict[str, float]
    dense_samples_ms: list[float]
    spin_samples_ms: list[float]


@dataclass(frozen=True)
class Summary:
    """One size with one scorer. break_even: least share of blocks to skip so that SPIN is not
    slower, None if no measured sparsity gets there. overhead_*: at sparsity 0, None if not
    measured. state_bytes_per_block: SPIN's history, per block, layer and row."""

    scorer: str
    observe: str
    batch: int
    context: int
    layers: int
    model_layers: int
    dense_ms: float
    overhead_ms: float | None
    overhead_percent: float | None
    break_even: float | None
    state_bytes_per_block: float


@dataclass(frozen=True)
class Target:
    """A figure that was promised for one size. met: whether value <= limit (or >= if at_least).

    noise: by how much equal steps differ, as a share of a step; 0 for what is no time.
    """

    name: str
    scorer: str
    observe: str
    value: float | None
    limit: float
    noise: float = 0.0
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """None where the figure was not measured, or where noise forbids to say."""
        if self.value is None or self.noise > NOISE_LIMIT:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Measured:
    """Samples of one sparsity: dense[i] and spin[i] belong to the same repeat."""

    scorer: str
    topk: str
    observe: str
    sparsity: float
    dense: list[float]
    spin: list[float]
    parts: dict[str, float]


def record(size: Size, measured: Measured, floor: Floor, bytes_per_s: float) -> Record:
    """Figures of one sparsity."""
    dense, spin = statistics.median(measured.dense), statistics.median(measured.spin)
    pairs = list(zip(measured.spin, measured.dense, strict=True))
    low, ratio, high = quartiles([s / d for s, d in pairs])
    own = measured.parts["fold_select"] + measured.parts["observe"]
    kept = size.kept(measured.sparsity)
    per_ms = bytes_per_s / 1e3
    return Record(
        scorer=measured.scorer,
        topk=measured.topk,
        observe=measured.observe,
        batch=size.batch,
        context=size.context,
        entries=size.entries,
        blocks=size.blocks,
        layers=size.layers,
        heads=size.model.index_heads,
        sparsity=measured.sparsity,
        kept_blocks=kept,
        skipped_share=1 - kept / size.blocks,
        dense_ms=dense,
        spin_ms=spin,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        difference_ms=statistics.median(s - d for s, d in pairs),
        own_ms=own,
        own_percent=100 * own / dense,
        dense_bytes=floor.dense,
        spin_bytes=floor.spin,
        own_bytes=floor.own,
        dense_fraction=floor.dense / per_ms / dense,
        spin_fraction=(floor.spin + floor.own) / per_ms / spin,
        scorer_fraction=floor.scorer / per_ms / measured.parts["score"],
        parts_ms=measured.parts,
        dense_samples_ms=measured.dense,
        spin_samples_ms=measured.spin,
    )


def summary(size: Size, records: Sequence[Record], model_layers: int, state: float) -> Summary:
    """What the records of one size and scorer say together; at least one record."""
    none = next((r for r in records if r.sparsity == 0), None)
    return Summary(
        scorer=records[0].scorer,
        observe=records[0].observe,
        batch=size.batch,
        context=size.context,
        layers=size.layers,
        model_layers=model_layers,
        dense_ms=records[0].dense_ms,
        overhead_ms=none.difference_ms if none else None,
        overhead_percent=100 * none.difference_ms / none.dense_ms if none else None,
        break_even=break_even([(r.skipped_share, r.ratio) for r in records]),
        state_bytes_per_block=state,
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; one value is all three."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def break_even(points: Sequence[tuple[float, float]]) -> float | None:
    """Least skipped share at which the ratio is 1, between measured (share, ratio) points.

    Straight lines join neighbouring points. 0 if the first point, at share 0, is at most 1; None if
    every point is above 1, or the first one is below 1 at a share above 0: then it lies outside.
    """
    ordered = sorted(points)
    if not ordered:
        return None
    share, ratio = ordered[0]
    if ratio <= 1:
        return share if share == 0 or ratio == 1 else None
    for next_share, next_ratio in ordered[1:]:
        if next_ratio <= 1:
            return share + (next_share - share) * (ratio - 1) / (ratio - next_ratio)
        share, ratio = next_share, next_ratio
    return None


def targets(device: str, records: Sequence[Record], summaries: Sequence[Summary]) -> list[Target]:
    """What the project promised, for each scorer measured at the size it was promised for."""
    found = []
    wanted = CPU_SHAPE if device == "cpu" else GPU_SHAPE
    at_size = [r for r in records if (r.batch, r.blocks, r.heads) == wanted]
    for whole in summaries:
        mine = [
            r
            for r in at_size
            if (r.scorer, r.batch, r.context) == (whole.scorer, whole.batch, whole.context)
        ]
        if mine:
            pruned = next((r for r in mine if r.sparsity == 0.4), None)
            found += _targets(device, whole, pruned, noise(mine))
    return found


def noise(records: Sequence[Record]) -> float:
    """Spread of ratios between repeats; or how much faster SPIN came out although it skips nothing.

    Of the records of one size and scorer, the largest.
    """
    spreads = [r.ratio_high - r.ratio_low for r in records]
    return max(spreads + [1 - r.ratio for r in records if r.sparsity == 0])


def _targets(device: str, whole: Summary, pruned: Record | None, uncertain: float) -> list[Target]:
    """pruned: the record at sparsity 0.4, if it was measured."""

    def target(name: str, value: float | None, limit: float, at_least: bool = False) -> Target:
        return Target(name, whole.scorer, whole.observe, value, limit, uncertain, at_least)

    ratio = pruned.ratio if pruned else None
    step = "SPIN step over dense step at sparsity 0.4"
    held = "state, bytes a block, layer and row"
    state = Target(held, whole.scorer, whole.observe, whole.state_bytes_per_block, 12.0)
    if device == "cpu":
        overhead = target("overhead at sparsity 0, % of dense", whole.overhead_percent, 3.0)
        return [target(step, ratio, 0.66), overhead, state]
    share = whole.break_even
    if share is None and whole.overhead_ms is not None:
        share = 1.0  # measured, and not reached
    fraction = pruned.scorer_fraction if pruned else None
    return [
        target(step, ratio, 0.65),
        target("break-even share of blocks skipped", share, 0.05),
        target("scorer at sparsity 0.4, share of copy bandwidth", fraction, 0.7, at_least=True),
        state,
    ]
