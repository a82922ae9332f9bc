"""Scorers and top-k that can be measured, each as the engine would call it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.indexer_step.scene import Scene
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, SpinState
from sglang_spin.kernels.paged_logits import observed_logits, paged_logits


class Scorer(Protocol):
    """Index scores of a layer's rows over the pages that a table names."""

    fuses_maxima: bool  # whether it has score_and_observe

    def plan(self, lengths: Tensor) -> Any:
        """What the scorer prepares once a step for rows of these lengths, int32 [rows]."""

    def score(self, layer: int, lengths: Tensor, table: Tensor, plan: Any) -> Tensor:
        """fp32 [rows, >= 64 * columns]."""


class OperatorScorer:
    """The project's own operator: Triton, or its torch form, which is the plain torch scorer."""

    fuses_maxima = True

    def __init__(self, scene: Scene, impl: Any) -> None:
        self.scene, self.impl = scene, impl
        self.out = torch.empty((scene.size.batch, scene.size.blocks * BLOCK), device=scene.device)

    def plan(self, lengths: Tensor) -> None:  # noqa: ARG002
        return None

    def score(self, layer: int, lengths: Tensor, table: Tensor, plan: Any) -> Tensor:
        del plan
        q, cache = self.scene.q[layer], self.scene.caches[layer]
        weights = self.scene.weights[layer]
        return paged_logits(q, cache, weights, lengths, table, out=self.out, impl=self.impl)

    def score_and_observe(self, state: SpinState, layer: int, plan: Plan) -> Tensor:
        """Score the kept blocks and stash their maxima, in one launch."""
        q, cache = self.scene.q[layer], self.scene.caches[layer]
        weights = self.scene.weights[layer]
        return observed_logits(state, layer, q, cache, weights, plan, out=self.out, impl=self.impl)


class NumbaScorer:
    """The CPU engine's scorer. Like in the engine, each call allocates its logits."""

    fuses_maxima = False

    def __init__(self, scene: Scene) -> None:
        from sglang_spin.cpu.kernels.index_scores import paged_index_scores

        self.scene, self.kernel = scene, paged_index_scores

    def plan(self, lengths: Tensor) -> None:  # noqa: ARG002
        return None

    def score(self, layer: int, lengths: Tensor, table: Tensor, plan: Any) -> Tensor:
        del plan
        q, cache = self.scene.q[layer], self.scene.caches[layer]
        width = table.shape[1] * BLOCK
        return self.kernel(q, cache, self.scene.weights[layer], lengths, table, width)


class DeepGemmScorer:
    """SGLang's default on Hopper and Blackwell."""

    fuses_maxima = False

    def __init__(self, scene: Scene) -> None:
        import deep_gemm  # type: ignore[import-not-found]

        self.scene, self.kernels = scene, deep_gemm
        properties = torch.cuda.get_device_properties(scene.device)
        self.processors = properties.multi_processor_count
        self.q = scene.q.unsqueeze(2)  # [layers, rows, next_n, heads, 128]
        self.caches = [cache.view(-1, BLOCK, 1, 132) for cache in scene.caches]

    def plan(self, lengths: Tensor) -> Tensor:
        schedule: Tensor = self.kernels.get_paged_mqa_logits_metadata(
            lengths.view(-1, 1), BLOCK, self.processors
        )
        return schedule

    def score(self, layer: int, lengths: Tensor, table: Tensor, plan: Any) -> Tensor:
        logits: Tensor = self.kernels.fp8_paged_mqa_logits(
            self.q[layer],
            self.caches[layer],
            self.scene.weights[layer],
            lengths.view(-1, 1),
            table,
            plan,
            table.shape[1] * BLOCK,
            clean_logits=False,
        )
        return logits


class TopK(Protocol):
    """Pool slots of the best entries of each row, as attention wants them."""

    def plan(self, lengths: Tensor) -> Any: ...

    def select(
        self, logits: Tensor, lengths: Tensor, table: Tensor, plan: Any, blocks: int
    ) -> None:
        """blocks: of every row, known on the host."""


class NumbaTopK:
    """The CPU engine's."""

    def __init__(self, scene: Scene) -> None:
        from sglang_spin.cpu.kernels.topk import topk_slots

        self.kernel, self.out = topk_slots, _slots(scene)

    def plan(self, lengths: Tensor) -> None:  # noqa: ARG002
        return None

    def select(
        self, logits: Tensor, lengths: Tensor, table: Tensor, plan: Any, blocks: int
    ) -> None:
        del plan, blocks
        self.kernel(logits, lengths, table, BLOCK, self.out)


class TorchTopK:
    """torch.topk over the columns in use: stands in for an engine's length-bounded top-k."""

    def __init__(self, scene: Scene) -> None:
        self.out = _slots(scene)
        self.column = torch.arange(BLOCK, device=scene.device)

    def plan(self, lengths: Tensor) -> None:  # noqa: ARG002
        return None

    def select(
        self, logits: Tensor, lengths: Tensor, table: Tensor, plan: Any, blocks: int
    ) -> None:
        del plan
        newest = logits[:, (blocks - 1) * BLOCK : blocks * BLOCK]
        past = self.column >= (lengths - (blocks - 1) * BLOCK)[:, None]
        newest.masked_fill_(past, float("-inf"))
        k = min(self.out.shape[1], blocks * BLOCK)
        columns = logits[:, : blocks * BLOCK].topk(k, sorted=False).indices
        pages = table.gather(1, columns // BLOCK)
        self.out[:, :k] = pages * BLOCK + columns % BLOCK


class SGLangTopK:
    """SGLang's decode top-k, with its plan."""

    def __init__(self, scene: Scene) -> None:
        from sglang.kernels.ops.attention.dsv4 import topk

        self.kernels, self.out = topk, _slots(scene)

    def plan(self, lengths: Tensor) -> Any:
        return self.kernels.plan_topk_v2(lengths)

    def select(
        self, logits: Tensor, lengths: Tensor, table: Tensor, plan: Any, blocks: int
    ) -> None:
        del blocks
        self.kernels.topk_transform_paged_v2(logits, lengths, table, self.out, BLOCK, plan)


def _slots(scene: Scene) -> Tensor:
    shape = (scene.size.batch, scene.size.model.index_topk)
    return torch.full(shape, -1, dtype=torch.int32, device=scene.device)


def _triton(scene: Scene) -> Scorer:
    return OperatorScorer(scene, "triton")


def _torch(scene: Scene) -> Scorer:
    return OperatorScorer(scene, "reference")


# per device, best first: the package each one needs, and how it is made
SCORERS: dict[str, dict[str, tuple[str, Callable[[Scene], Scorer]]]] = {
    "cuda": {
        "deepgemm": ("deep_gemm", DeepGemmScorer),
        "triton": ("triton", _triton),
    },
    "cpu": {"numba": ("numba", NumbaScorer), "torch": ("torch", _torch)},
}
TOPKS: dict[str, dict[str, tuple[str, Callable[[Scene], TopK]]]] = {
    "cuda": {"sglang": ("sglang", SGLangTopK), "torch": ("torch", TorchTopK)},
    "cpu": {"numba": ("numba", NumbaTopK), "torch": ("torch", TorchTopK)},
}


def present(choices: dict[str, tuple[str, Any]]) -> list[str]:
    """Names of those choices whose package is installed, best first."""
    return [name for name, (package, _) in choices.items() if importlib.util.find_spec(package)]
