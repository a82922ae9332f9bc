"""SPIN's scorer in the engine's place: what it gives, when it is given out, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.fused import FusedScorer
from sglang_spin.engine.hooks import active
from sglang_spin.engine.hooks import scorer as hook
from sglang_spin.kernels.observe import observe

HEADS, WIDTH, PAGES = 16, 5, 30
LENGTHS = (70, 300, 1, 129)
ROWS = (3, 1, 4, 2)


def _state() -> SpinState:
    config = SpinConfig(enabled=True, scorer="fused", sparsity=0.0)
    state = SpinState(config, Shape(2, len(ROWS) + 1, WIDTH, PAGES, 128))
    state.open_rows(torch.tensor(ROWS))
    return state


def _plan(state: SpinState) -> Plan:
    generator = torch.Generator().manual_seed(1)
    table = torch.stack([torch.randperm(PAGES, generator=generator)[:WIDTH] for _ in ROWS]).int()
    return state.begin(table, torch.tensor(LENGTHS, dtype=torch.int32), torch.tensor(ROWS))


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q fp8 [rows, 1, heads, 128], cache uint8 [pages, 64, 1, 132], weights fp32 [rows, heads]."""
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(len(ROWS), 1, HEADS, 128, generator=generator).to(torch.float8_e4m3fn)
    keys = torch.randn(PAGES, BLOCK * 128, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(PAGES, BLOCK, generator=generator)
    cache = torch.cat((keys.view(torch.uint8), scales.view(torch.uint8)), 1)
    weights = torch.randn(len(ROWS), HEADS, generator=generator)
    return q, cache.view(PAGES, BLOCK, 1, 132), weights


def _score(scorer: Any, plan: Plan, rows: slice, lengths: torch.Tensor | None = None) -> Any:
    q, cache, weights = _inputs()
    ctx = (plan.lengths[1] if lengths is None else lengths).view(-1, 1)[rows]
    table = plan.pages[1][rows]
    return scorer(q[rows], cache, weights[rows], ctx, table, None, WIDTH * BLOCK)


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_chunks_of_a_batch_leave_what_observe_would(chunk: int) -> None:
    """The engine scores a large batch in slices; the history holds every row's block maxima."""
    state = _state()
    plan, scorer = _plan(state), FusedScorer(state, HEADS)
    scorer.expect(1, plan)
    parts = [_score(scorer, plan, slice(i, i + chunk)) for i in range(0, len(ROWS), chunk)]
    scorer.done()
    other = _state()
    other_plan = _plan(other)
    observe(other, 1, torch.cat(parts), other_plan)
    assert torch.equal(state.history.recent, other.history.recent)  # type: ignore[attr-defined]
    assert not scorer.expecting


def test_rows_that_another_scorer_served_end_the_process() -> None:
    """A layer whose rows did not all come through would leave an empty history, silently."""
    state = _state()
    plan, scorer = _plan(state), FusedScorer(state, HEADS)
    scorer.expect(1, plan)
    _score(scorer, plan, slice(0, 3))
    with pytest.raises(_Ended, match="3 of 4 rows of indexer layer 1"):
        scorer.done()


def test_lengths_that_are_not_the_plans_end_the_process() -> None:
    """Scores of other lengths cannot be told apart by row, so none is guessed."""
    state = _state()
    plan, scorer = _plan(state), FusedScorer(state, HEADS)
    scorer.expect(1, plan)
    with pytest.raises(_Ended, match="not the plan's"):
        _score(scorer, plan, slice(0, 4), lengths=plan.lengths[1].clone())


def test_a_model_with_other_heads_is_refused_at_start() -> None:
    """The kernel has no form for 8 heads; the line says which it has and what to use."""
    with pytest.raises(_Ended, match=r"serves \(16, 32, 64\) index heads, the model has 8"):
        FusedScorer(_state(), 8)


def test_only_the_target_models_layer_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill and draft layers, which took no plan, are given the engine's own scorer."""
    runtime = runtimes.Runtime(SpinConfig(enabled=True, scorer="fused"))
    monkeypatch.setattr(runtimes, "_runtime", runtime)
    state = _state()
    runtime.fused = FusedScorer(state, HEADS)
    assert hook._around_resolve(lambda: "engine's") == "engine's"
    runtime.fused.expect(0, _plan(state))
    assert hook._around_resolve(lambda: "engine's") is runtime.fused


def test_the_hook_is_installed_for_the_option_alone() -> None:
    """With the engine's scorer nothing is put around it."""
    engine, fused = (active(SpinConfig(enabled=True, scorer=s), "dsa") for s in ("engine", "fused"))
    assert set(fused) - set(engine) == set(hook.HOOKS)
    assert set(engine) < set(fused)


class _Ended(Exception):
    """The process would have ended."""


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_spin.engine import fused

    def die(reason: str) -> None:
        raise _Ended(reason)

    monkeypatch.setattr(fused, "die", die)
