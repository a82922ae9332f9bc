"""`python -m benchmarks.gpu_check_replay`: a step in a CUDA graph equals the same step run eagerly.

Graphs for two batch sizes share one workspace. Between replays the allocator is churned and inputs
change in place. Exit: 0 equal, 1 a value differs, 2 the request is wrong. On a CPU, where there is
no graph, it only shows that the script works (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu_check_values import Mismatch, compare_states, equal, rotated
from benchmarks.indexer_step.options import check_options
from benchmarks.indexer_step.scene import Scene
from benchmarks.indexer_step.sizes import Size
from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.fold_select import allocate, fold_select
from sglang_spin.kernels.observe import observe
from sglang_spin.kernels.paged_logits import observed_logits, paged_logits
from sglang_spin.lab.cost.models import V4_FLASH

CHURN_BYTES = 1 << 26


@dataclass
class Engine:
    """A state, its static buffers, and the step over the first `batch` rows of a scene."""

    scene: Scene
    state: SpinState
    lengths: Tensor
    table: Tensor
    rows: Tensor
    logits: Tensor

    @classmethod
    def over(cls, scene: Scene) -> Engine:
        size = scene.size
        shape = Shape(size.layers, size.batch + 1, size.blocks, size.batch * size.blocks + 1, 512)
        config = SpinConfig(enabled=True, sparsity=0.4, audit_every=3, miss_slo=0.05)
        state = SpinState(config, shape, scene.device)
        state.open_rows(scene.rows)
        width = size.blocks * BLOCK
        logits = torch.zeros(size.layers, size.batch, width, device=scene.device)
        return cls(scene, state, scene.lengths(), scene.table.clone(), scene.rows.clone(), logits)

    def __post_init__(self) -> None:
        size = self.scene.size
        self.workspace = allocate(
            self.state.shape,
            size.batch,
            size.blocks,
            self.scene.device,
            audits=True,
            classes=self.state.budgets.classes,
        )

    def step(self, batch: int) -> None:
        """Select, score, observe and audit, odd layers in one launch; nothing depends on data."""
        plan = fold_select(
            self.state,
            self.table[:batch],
            self.lengths[:batch],
            self.rows[:batch],
            workspace=self.workspace,
            impl="triton",
        )
        for layer in range(self.scene.size.layers):
            logits, q = self.logits[layer, :batch], self.scene.q[layer, :batch]
            cache, weights = self.scene.caches[layer], self.scene.weights[layer, :batch]
            if layer % 2:
                observed_logits(
                    self.state, layer, q, cache, weights, plan, out=logits, impl="triton"
                )
            else:
                lengths, pages = plan.lengths[layer], plan.pages[layer]
                paged_logits(q, cache, weights, lengths, pages, out=logits, impl="triton")
                observe(self.state, layer, logits, plan, impl="triton")
            audit(self.state, layer, logits, plan, impl="triton")

    def load(self, step: int) -> None:
        """Write a step's inputs in place: lengths grow; every fourth step one row is padding; every
        third budget moves between layers."""
        self.lengths.add_(1)
        if step % 3 == 0:
            self.state.budgets.set(rotated(0.4, self.scene.size.layers, step // 3))
        self.rows.copy_(self.scene.rows)
        if step % 4 == 3:
            self.rows[1] = 0


def captured(engine: Engine, batch: int) -> Callable[[], None]:
    """The step as a graph; on a CPU the step itself. Raises Mismatch if capturing takes memory."""
    if engine.scene.device.type == "cpu":
        return lambda: engine.step(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = allocations()
        engine.step(batch)
        taken = allocations() - before
    if taken:
        raise Mismatch(f"the recorded step took memory {taken} times")
    return graph.replay


def allocations() -> int:
    """Tensors that the allocator has handed out so far."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def churn(device: torch.device, step: int) -> None:
    """Take and dirty memory that the allocator would hand out again, then give it back."""
    held = [
        torch.full((CHURN_BYTES // 64 * (1 + step % 3),), 0xFF, dtype=torch.uint8, device=device)
        for _ in range(8)
    ]
    del held
    if device.type == "cuda" and step % 5 == 4:
        torch.cuda.empty_cache()


def replay(device: torch.device, tiny: bool) -> list[str]:
    """Lives of an eager and a replayed engine side by side. Raises Mismatch."""
    batch, blocks, layers, steps = (3, 12, 2, 6) if tiny else (8, 500, 4, 40)
    model = replace(V4_FLASH, indexer_layers=layers, index_heads=16 if tiny else 64)
    scene = Scene(Size(model, batch, blocks * BLOCK * model.compress_ratio), device)
    eager, graphed = Engine.over(scene), Engine.over(scene)
    sizes = (batch, batch - 1)
    for size in sizes:  # compiles the kernels, which a capture must not
        for engine in (eager, graphed):
            engine.load(0)
            engine.step(size)
    graphs = {size: captured(graphed, size) for size in sizes}
    compare_states(graphed.state, eager.state)
    for step in range(1, steps):
        size = sizes[step % 2]
        for engine in (eager, graphed):
            engine.load(step)
        churn(device, step)
        eager.step(size)
        graphs[size]()
        for name in ("pages", "blocks", "lengths"):
            pair = (getattr(engine.workspace, name) for engine in (graphed, eager))
            equal(f"{name} of step {step}", *pair)
        equal(f"logits of step {step}", graphed.logits, eager.logits)
        compare_states(graphed.state, eager.state)
    counters = graphed.state.counters.read()
    how = "replays" if device.type == "cuda" else "repetitions (no graph on a CPU)"
    return [
        f"ok     {steps - 1} {how} of two batch sizes equal the eager steps, bit for bit",
        f"       {layers} layers, {batch} rows of {blocks} blocks, realised sparsity"
        f" {counters['realised_sparsity']:.3f}",
        f"       {graphed.state.nbytes:,} B of state, {graphed.workspace.nbytes:,} B of workspace",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and write to --out."""
    options = check_options("python -m benchmarks.gpu_check_replay", arguments)
    status = 0
    try:
        lines = replay(torch.device(options.device), options.tiny)
    except Mismatch as mismatch:
        lines, status = [f"FAILED graph replay: {mismatch}"], 1
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
