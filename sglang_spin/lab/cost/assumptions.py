"""Everything an estimate rests on, each line tagged with where it comes from."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sglang_spin.lab.cost import published, traffic
from sglang_spin.lab.cost.calibration import COMPUTE, LAUNCH, OTHER_BANDWIDTH
from sglang_spin.lab.cost.estimate import StepModel
from sglang_spin.lab.cost.operators import STATE_PER_BLOCK, STATE_PER_SLOT

Tag = Literal["published", "derived", "calibrated", "assumed", "warning"]


class Assumption(NamedTuple):
    """tag: `published`, `derived` from bytes, `calibrated` to the published run, `assumed`, or a
    `warning` about this very request."""

    tag: Tag
    text: str


def assumptions(step: StepModel) -> list[Assumption]:
    """All of them, warnings first."""
    return [*warnings(step), *_published(), *_derived(step), *_calibrated(step), *_assumed(step)]


def warnings(step: StepModel) -> list[Assumption]:
    """Where this request leaves the point of calibration, or what the hardware can hold."""
    found = []
    moved = _moved_from_calibration(step)
    if moved:
        text = f"not the calibrated point ({'; '.join(moved)}): calibrated terms are carried over"
        found.append(f"{text} unchecked")
    if step.load.context > step.model.positions:
        found.append(f"{step.model.name} is trained for {step.model.positions:,} tokens at most")
    need = traffic.memory(step.model, step.load)
    if need > step.gpu.memory:
        found.append(
            f"does not fit: weights and caches need {need / 1e9:.0f} GB a rank, "
            f"{step.gpu.name} has {step.gpu.memory / 1e9:.0f} GB"
        )
    return [Assumption("warning", text) for text in found]


def _moved_from_calibration(step: StepModel) -> list[str]:
    mine, theirs = step.load, published.LOAD
    pairs = {
        "gpu": (step.gpu.name, published.GPU.name),
        "model": (step.model.name, published.MODEL.name),
        "context": (mine.context, theirs.context),
        "batch": (mine.batch, theirs.batch),
        "tp": (mine.tp, theirs.tp),
        "index format": (mine.index_format, theirs.index_format),
    }
    return [
        f"{name} {ours} instead of {fitted}"
        for name, (ours, fitted) in pairs.items()
        if ours != fitted
    ]


def _published() -> list[Assumption]:
    runs = "; ".join(
        f"{run.sparsity:.0%} {run.itl * 1e3:.3f} ms, {run.tokens_per_second:.2f} tok/s"
        for run in published.RUNS
    )
    return [
        Assumption("published", f"median ITL and output throughput by block sparsity: {runs}"),
        Assumption(
            "published", "these are v1's; v3 states +13.9 % throughput, -13.6 % ITL at best"
        ),
        Assumption("published", "8 B300, TP8/EP8, 507K cached + 5K new + 16K output, 96 requests"),
    ]


def _derived(step: StepModel) -> list[Assumption]:
    model, load = step.model, step.load
    count = traffic.entries(model, load.context)
    size = traffic.entry_bytes(model, load.index_format)
    request = count * size * model.indexer_layers
    touched = traffic.experts_touched(model, load.batch)
    texts = [
        f"index-K: {count:,} entries x {size} B x {model.indexer_layers} layers = "
        f"{request / 1e6:.1f} MB a request and step, on every rank",
        f"scoring: 2 x {model.index_heads} heads x {model.index_dim} FLOPs an entry; "
        "one fp32 logit written, read once by top-k",
        f"core attention: {traffic.attended(model, load.context):,} KV entries x "
        f"{model.kv_bytes} B a request, on every rank; heads split over ranks",
        f"weights: {touched:.1%} of the routed experts are touched by {load.batch} tokens",
        f"state: paper {STATE_PER_SLOT} B a slot, ours {STATE_PER_BLOCK} B a block, "
        "a layer and a row; read and written once a step",
    ]
    return [Assumption("derived", text) for text in texts]


def _calibrated(step: StepModel) -> list[Assumption]:
    fitted = step.calibration
    remainder = fitted.remainder_per_layer
    total = remainder * published.MODEL.layers
    even = fitted.fixed / fitted.slope
    texts = [
        f"slope {fitted.slope * 1e3:.2f} ms per unit of sparsity, from the 40 % and 50 % points; "
        f"fixed cost of the paper's SPIN {fitted.fixed * 1e3:.2f} ms; so break-even {even:.1%}",
        f"scoring and top-k reach {fitted.scorer_bandwidth:.1%} of peak bandwidth: what makes "
        "them take the slope if the run read an fp8 index",
        f"remainder {remainder * 1e6:.0f} us a layer, {total * 1e3:.2f} ms at the published point: "
        "collectives, launches, all that no byte here explains",
        f"the paper's rest {fitted.paper_rest_per_layer * 1e6:.1f} us an indexer layer: its fixed "
        "cost less the bytes of its slot state",
        "the published ITLs are met by construction; that is no evidence for the model",
        f"output tokens/s = {fitted.decode_share:.3f} x batch / ITL: mean of the three points",
    ]
    return [Assumption("calibrated", text) for text in texts]


def _assumed(step: StepModel) -> list[Assumption]:
    texts = [
        "the published run is V4-Flash (V4-Pro with 96 such requests would not fit 8 B300), fp8 "
        "index, no speculative decoding: our source states none of these; every request at 507,000 "
        "tokens (nearer 520,000 on average in truth)",
        "the paper reads and writes all of its slot state each step, at the scorer's bandwidth",
        "SPIN's cost does not depend on sparsity in the paper; two points cannot tell",
        f"core attention and weights reach {OTHER_BANDWIDTH:.0%} of peak bandwidth, anything "
        f"{COMPUTE:.0%} of the tensor-core peak; a part takes the longer of the two; parts add up",
        f"our operators reach the scorer's bandwidth; a small launch costs {LAUNCH * 1e6:.0f} us; "
        "one budget class (schedule and top-k plan: 2 launches); page and block ids are int32",
        "the work inside fold_select beyond its bytes (selection) is not modelled",
        "logits that observe reads again come from HBM, although one layer's may stay in L2",
        "the remainder grows with layers only, not with batch, context, tp or GPU",
        f"{step.model.name}: {step.model.assumed}",
        f"{step.gpu.name}: {step.gpu.bandwidth / 1e12:.1f} TB/s; {step.gpu.source}",
    ]
    return [Assumption("assumed", text) for text in texts]
