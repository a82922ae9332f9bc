"""The five numbers that come from the published run instead of from bytes, and three assumed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sglang_spin.lab.cost import published
from sglang_spin.lab.cost.gpus import Gpu
from sglang_spin.lab.cost.operators import slot_state
from sglang_spin.lab.cost.traffic import Work, blocks, core_attention, scoring, topk, weights

OTHER_BANDWIDTH = 0.8  # assumed: share of peak bandwidth that weights and attention reach
COMPUTE = 0.5  # assumed: share of the tensor-core peak that any part reaches
LAUNCH = 3e-6  # assumed: seconds a small kernel costs inside a CUDA graph


@dataclass(frozen=True)
class Calibration:
    """Fitted to the published run.

    slope: seconds of ITL per unit of sparsity. fixed: seconds SPIN adds to every step.
    scorer_bandwidth: share of peak that makes scoring and top-k take `slope`.
    remainder_per_layer: seconds a layer that no byte explains: collectives, launches, idle.
    paper_rest_per_layer: seconds an indexer layer of `fixed` that the slot state's bytes leave.
    decode_share: output tokens/s over batch / ITL.
    """

    slope: float
    fixed: float
    scorer_bandwidth: float
    remainder_per_layer: float
    paper_rest_per_layer: float
    decode_share: float


def seconds(work: Work, gpu: Gpu, bandwidth_share: float) -> float:
    """Time of one part: the longer of its bytes and its FLOPs, at the shares of peak it reaches."""
    moving = work.moved / (gpu.bandwidth * bandwidth_share)
    if not work.flops:
        return moving
    return max(moving, work.flops / (gpu.peak(work.precision) * COMPUTE))


@cache
def calibrate() -> Calibration:
    """Two-point fit of ITL over sparsity, then what bytes explain is taken out of it."""
    model, gpu, load = published.MODEL, published.GPU, published.LOAD
    dense, low, high = published.RUNS
    slope = (low.itl - high.itl) / (high.sparsity - low.sparsity)
    fixed = low.itl - dense.itl + low.sparsity * slope
    count = blocks(model, load.context)
    sparsifiable = scoring(model, load, count).moved + topk(model, load, count).moved
    share = sparsifiable / (slope * gpu.bandwidth)
    explained = slope
    for work in (core_attention(model, load), weights(model, load)):
        explained += seconds(work, gpu, OTHER_BANDWIDTH)
    state = seconds(slot_state(model, load), gpu, share)
    flows = [run.tokens_per_second * run.itl / load.batch for run in published.RUNS]
    return Calibration(
        slope=slope,
        fixed=fixed,
        scorer_bandwidth=share,
        remainder_per_layer=(dense.itl - explained) / model.layers,
        paper_rest_per_layer=(fixed - state) / model.indexer_layers,
        decode_share=sum(flows) / len(flows),
    )
