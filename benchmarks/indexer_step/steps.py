"""The two ways to do the indexer's work of one decode step, over all layers."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.indexer_step.scene import Scene
from benchmarks.indexer_step.scorers import OperatorScorer, Scorer, TopK
from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.kernels.fold_select import allocate, fold_select
from sglang_spin.kernels.observe import observe

Mark = Callable[[str], None]


def unmarked(part: str) -> None:
    """A mark that nobody times."""


class DenseStep:
    """Score and select from all blocks."""

    def __init__(self, scene: Scene, scorer: Scorer, topk: TopK) -> None:
        self.scene, self.scorer, self.topk = scene, scorer, topk
        self.lengths = scene.lengths()

    def warm_up(self) -> None:
        """One step, which compiles what must be."""
        self.run()

    def run(self, mark: Mark = unmarked) -> None:
        """One step. `mark` is called with the name of each part when it is enqueued."""
        scene, table = self.scene, self.scene.table
        self.lengths.add_(1)
        schedule, topk_plan = self.scorer.plan(self.lengths), self.topk.plan(self.lengths)
        mark("plan")
        for layer in range(scene.size.layers):
            logits = self.scorer.score(layer, self.lengths, table, schedule)
            mark("score")
            self.topk.select(logits, self.lengths, table, topk_plan, scene.size.blocks)
            mark("topk")


class SpinStep:
    """Fold and select, then score, observe and select from the kept blocks."""

    def __init__(
        self, scene: Scene, scorer: Scorer, topk: TopK, sparsity: float, *, fused: bool = False
    ) -> None:
        size = scene.size
        self.scene, self.scorer, self.topk = scene, scorer, topk
        self.lengths, self.kept, self.fused = scene.lengths(), size.kept(sparsity), fused
        shape = Shape(
            layers=size.layers,
            rows=size.batch + 1,
            blocks=size.blocks,
            pages=size.batch * size.blocks + 1,
            index_topk=size.model.index_topk,
        )
        config = SpinConfig(enabled=True, sparsity=sparsity)
        self.state = SpinState(config, shape, scene.device)
        self.workspace = allocate(shape, size.batch, size.blocks, scene.device)
        self.state.open_rows(scene.rows)

    def warm_up(self) -> None:
        """One step, as it is while blocks may still be cold: as many are kept as must be."""
        self._step(unmarked, fused=False, blocks=self.scene.size.blocks)

    def run(self, mark: Mark = unmarked) -> None:
        """One steady step; as DenseStep.run."""
        self._step(mark, fused=self.fused, blocks=self.kept)

    def check_steady(self) -> None:
        """Raise RuntimeError unless the last step kept the blocks that a steady one keeps."""
        skipped = (self.lengths - self.workspace.lengths_of(len(self.lengths))[0]).tolist()
        wanted = (self.scene.size.blocks - self.kept) * BLOCK
        if any(entries != wanted for entries in skipped):
            raise RuntimeError(f"a step skipped {skipped} entries a row instead of {wanted}")

    def _step(self, mark: Mark, *, fused: bool, blocks: int) -> None:
        self.lengths.add_(1)
        plan = fold_select(
            self.state,
            self.scene.table,
            self.lengths,
            self.scene.rows,
            workspace=self.workspace,
            fill_tail=False,
        )
        mark("fold_select")
        lengths = plan.lengths[0]  # of every layer
        schedule, topk_plan = self.scorer.plan(lengths), self.topk.plan(lengths)
        mark("plan")
        for layer in range(self.scene.size.layers):
            table = plan.pages[layer]
            if fused:
                assert isinstance(self.scorer, OperatorScorer)
                logits = self.scorer.score_and_observe(self.state, layer, plan)
                mark("score")
            else:
                logits = self.scorer.score(layer, lengths, table, schedule)
                mark("score")
                observe(self.state, layer, logits, plan)
            mark("observe")
            self.topk.select(logits, lengths, table, topk_plan, blocks)
            mark("topk")
