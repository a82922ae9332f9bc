"""One size, one scorer: all arms in one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.indexer_step.analysis import Measured, Record, Summary, record, summary
from benchmarks.indexer_step.scene import Scene
from benchmarks.indexer_step.scorers import SCORERS, TOPKS
from benchmarks.indexer_step.sizes import floor
from benchmarks.indexer_step.steps import DenseStep, SpinStep
from benchmarks.indexer_step.timing import EAGER_STEPS, Stopwatch, interleaved
from sglang_spin.lab.cost.operators import Observe

WARM_UPS = 3  # everything cold, then everything scored once, then a step like all later ones
# the steps of an arm must stay within the newest block of 64 entries
MAX_REPEATS = 63 - WARM_UPS - 1 - EAGER_STEPS


def measure(
    scene: Scene,
    scorer_name: str,
    topk_name: str,
    *,
    sparsities: Sequence[float],
    observe: Observe,
    repeats: int,
    model_layers: int,
    watch: Stopwatch,
    bytes_per_s: float,
) -> tuple[list[Record], Summary]:
    """Time the dense step and SPIN's at each sparsity. Raises RuntimeError if not steady."""
    kind = watch.device.type
    scorer = SCORERS[kind][scorer_name][1](scene)
    topk = TOPKS[kind][topk_name][1](scene)
    how: Observe = "fused" if observe == "fused" and scorer.fuses_maxima else "separate"
    dense = DenseStep(scene, scorer, topk)
    spins = {s: SpinStep(scene, scorer, topk, s, fused=how == "fused") for s in sparsities}
    arms = {"dense": partial(watch.time, watch.prepare(dense, WARM_UPS))}
    for sparsity, step in spins.items():
        arms[str(sparsity)] = partial(watch.time, watch.prepare(step, WARM_UPS))
    samples = interleaved(arms, repeats)
    records = []
    for sparsity, step in spins.items():
        step.check_steady()
        measured = Measured(
            scorer=scorer_name,
            topk=topk_name,
            observe=how,
            sparsity=sparsity,
            dense=samples["dense"],
            spin=samples[str(sparsity)],
            parts=watch.parts(step),
        )
        bytes_ = floor(scene.size, step.kept, how)
        records.append(record(scene.size, measured, bytes_, bytes_per_s))
    state = next(iter(spins.values())).state
    lines = state.shape.layers * state.shape.rows * state.shape.blocks
    return records, summary(scene.size, records, model_layers, state.history.nbytes / lines)
