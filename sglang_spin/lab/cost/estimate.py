"""ITL, throughput, speed-up and break-even of one load, for the paper's SPIN and for ours."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_spin.lab.cost import operators, traffic
from sglang_spin.lab.cost.calibration import (
    LAUNCH,
    OTHER_BANDWIDTH,
    Calibration,
    calibrate,
    seconds,
)
from sglang_spin.lab.cost.gpus import Gpu
from sglang_spin.lab.cost.models import ModelShape
from sglang_spin.lab.cost.operators import Observe
from sglang_spin.lab.cost.traffic import Load, Work

PAPER, SWAPPED, OURS = "paper", "swapped", "ours"
SCENARIOS: Mapping[str, str] = {
    PAPER: "SPIN as published: slot state plus the rest of its fixed cost",
    SWAPPED: "our operators' bytes in place of the slot state, the paper's rest kept",
    OURS: "our operators' bytes and launches alone: a floor",
}


@dataclass(frozen=True)
class Part:
    """One line of the step. basis sets its time: `bytes`, `flops`, `calibrated` or `assumed`."""

    name: str
    work: Work
    seconds: float
    basis: str


@dataclass(frozen=True)
class Outcome:
    """One step under one scenario. overhead, itl: seconds; speedup: all-keep ITL over this ITL."""

    overhead: float
    itl: float
    tokens_per_second: float
    speedup: float


@dataclass(frozen=True)
class Point:
    """One sparsity. skipped: share of the entries that is really not scored."""

    sparsity: float
    kept: int
    skipped: float
    outcomes: Mapping[str, Outcome]


@dataclass(frozen=True)
class StepModel:
    """A decode step of `model` under `load` on load.tp of these GPUs."""

    model: ModelShape
    gpu: Gpu
    load: Load
    observe: Observe = "separate"

    @property
    def calibration(self) -> Calibration:
        """The fitted numbers; the same for every step."""
        return calibrate()

    @property
    def blocks(self) -> int:
        """Blocks of one row."""
        return traffic.blocks(self.model, self.load.context)

    def parts(self, kept: int) -> list[Part]:
        """The step itself, without SPIN's operators, when `kept` blocks a row are scored."""
        model, load, fitted = self.model, self.load, self.calibration
        scorer = fitted.scorer_bandwidth
        rest = fitted.remainder_per_layer * model.layers
        return [
            self._part("indexer scoring", traffic.scoring(model, load, kept), scorer),
            self._part("top-k", traffic.topk(model, load, kept), scorer),
            self._part("core attention", traffic.core_attention(model, load), OTHER_BANDWIDTH),
            self._part("weights", traffic.weights(model, load), OTHER_BANDWIDTH),
            Part("remainder", Work(0.0), rest, "calibrated"),
        ]

    def paper_parts(self) -> list[Part]:
        """What SPIN adds as published; its two parts make the published fixed cost."""
        fitted = self.calibration
        rest = fitted.paper_rest_per_layer * self.model.indexer_layers
        state = operators.slot_state(self.model, self.load)
        return [
            self._part("paper: slot state", state, fitted.scorer_bandwidth),
            Part("paper: the rest", Work(0.0), rest, "calibrated"),
        ]

    def our_parts(self, kept: int) -> list[Part]:
        """What our operators add: three by bytes, then all their launches."""
        model, load, share = self.model, self.load, self.calibration.scorer_bandwidth
        seen = operators.observe(model, load, kept, self.observe)
        moving = [
            self._part("ours: fold_select", operators.fold_select(model, load), share),
            self._part("ours: page gather", operators.page_gather(model, load, kept), share),
            self._part(f"ours: observe ({self.observe})", seen, share),
        ]
        count = sum(part.work.launches for part in moving)
        return [*moving, Part(f"ours: {count} launches", Work(0.0), LAUNCH * count, "assumed")]

    def overhead(self, scenario: str, kept: int) -> float:
        """Seconds a step that SPIN adds."""
        paper = self.paper_parts()
        if scenario == PAPER:
            return sum(part.seconds for part in paper)
        *moving, launches = self.our_parts(kept)
        # the paper's rest holds launches already
        fixed = paper[1] if scenario == SWAPPED else launches
        return sum(part.seconds for part in moving) + fixed.seconds

    def base(self, kept: int) -> float:
        """Seconds of the step without SPIN's operators."""
        return sum(part.seconds for part in self.parts(kept))

    def tokens_per_second(self, itl: float) -> float:
        """Output tokens/s of all ranks together, one token a row and step."""
        return self.load.batch / itl * self.calibration.decode_share

    def outcome(self, scenario: str, kept: int) -> Outcome:
        """One scenario with `kept` blocks a row scored."""
        overhead = self.overhead(scenario, kept)
        itl = self.base(kept) + overhead
        return Outcome(overhead, itl, self.tokens_per_second(itl), self.base(self.blocks) / itl)

    def point(self, sparsity: float) -> Point:
        """All scenarios at one sparsity."""
        model, context = self.model, self.load.context
        kept = traffic.kept_blocks(model, context, sparsity)
        count = traffic.entries(model, context)
        skipped = 1 - traffic.kept_entries(model, context, kept) / count if count else 0.0
        return Point(sparsity, kept, skipped, {s: self.outcome(s, kept) for s in SCENARIOS})

    def points(self, sparsities: Sequence[float]) -> list[Point]:
        """`point` of each."""
        return [self.point(sparsity) for sparsity in sparsities]

    def break_even(self, scenario: str) -> float | None:
        """Least share of blocks to skip so that ITL is not above all-keep; None: no share does."""
        count, dense = self.blocks, self.base(self.blocks)
        most = count - traffic.kept_blocks(self.model, self.load.context, 1.0)

        def pays(skipped: int) -> bool:
            return self.outcome(scenario, count - skipped).itl <= dense

        skipped = bisect_left(range(most + 1), True, key=pays)
        return None if skipped > most else skipped / max(count, 1)

    def _part(self, name: str, work: Work, share: float) -> Part:
        moving = seconds(Work(work.read, work.written), self.gpu, share)
        took = seconds(work, self.gpu, share)
        return Part(name, work, took, "flops" if took > moving else "bytes")
