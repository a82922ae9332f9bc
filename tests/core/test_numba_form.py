"""The compiled CPU form of the step against the torch form: the same bits after every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Shape
from sglang_spin.kernels.fold_select import fold_select
from sglang_spin.kernels.observe import observe
from tests.core import verify_life
from tests.core.engine_double import EngineDouble
from tests.core.moves import random_allotment
from tests.core.test_against_oracle import random_scores
from tests.core.verify_life import VerifyLife
from tests.kernels.twins import Twins

SHAPE = Shape(layers=3, rows=5, blocks=24, pages=120, index_topk=100)


class _Life:
    """Random requests on an engine double whose state is a pair of twins."""

    def __init__(self, seed: int, config: SpinConfig) -> None:
        self.rng = np.random.default_rng(seed)
        self.twins = Twins(config, SHAPE, impl="numba")
        self.engine = EngineDouble(self.twins, SHAPE.pages, self.rng)

    def open(self) -> None:
        if self.engine.free_rows:
            row = int(self.rng.choice(self.engine.free_rows))
            length = int(self.rng.integers(1, 20 * BLOCK))
            shared = self.engine.cached[: length // BLOCK]
            self.engine.open(row, max(length, len(shared) * BLOCK + 1), shared)

    def close(self) -> None:
        self.engine.end_one()

    def step(self) -> None:
        rows = [r for r in self.engine.pages if self.engine.length[r] < 22 * BLOCK]
        if not rows:
            return
        for row in rows:
            self.engine.length[row] += 1
            self.engine.grow(row)
        padding, slack = (int(n) for n in self.rng.integers(0, 4, 2))
        plan, lengths = self.engine.begin(rows, padding, slack)
        for layer in range(SHAPE.layers):
            n = len(lengths)
            truth = np.stack([random_scores(self.rng, SHAPE.blocks * BLOCK) for _ in range(n)])
            logits = self.engine.logits(plan, layer, truth, lengths)
            self.twins.observe(layer, logits, plan)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "prev-iter", "random", "dense"]),
    alpha=st.sampled_from([0.25, 0.3, 1.0]),
    staleness=st.sampled_from([0.0, 0.4, 2.0]),
    every=st.sampled_from([0, 1, 3, 7]),
    moves=st.booleans(),
)
def test_every_step_is_the_same_bits(
    seed: int, policy: str, alpha: float, staleness: float, every: int, moves: bool
) -> None:
    """Plans, state and counters agree over opens, steps, closes, audits, padding and garbage, and
    while budget moves between layers."""
    moves = moves and every > 0 and policy != "dense"
    config = SpinConfig(
        enabled=True,
        policy=policy,
        alpha=alpha,
        staleness=staleness,
        sparsity=0.5,
        audit_every=every,
        miss_slo=0.05 if moves else 0.0,
    )
    life = _Life(seed, config)
    for _ in range(40):
        if moves and life.rng.random() < 0.2:
            life.twins.divide(random_allotment(life.rng, SHAPE.layers))
        getattr(life, life.rng.choice(["open", "close", "step"], p=[0.15, 0.08, 0.77]))()


def test_the_cpu_takes_the_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an explicit choice a CPU tensor goes to numba, and spin-paper to the reference."""
    from sglang_spin.kernels.fold_select import numba

    called: list[Any] = []
    original = numba.begin
    monkeypatch.setattr(numba, "begin", lambda *a: (called.append(a), original(*a)))
    table, lengths = torch.arange(10).int()[None], torch.tensor([600], dtype=torch.int32)
    for policy, expected in (("spin", 1), ("spin-paper", 1)):
        twins = Twins(SpinConfig(enabled=True, policy=policy), SHAPE)
        twins.reference.open_rows(torch.tensor([1]))
        fold_select(twins.reference, table, lengths, torch.tensor([1]))
        assert len(called) == expected


def test_an_explicit_choice_never_falls_back() -> None:
    """What has no compiled form is refused by name."""
    state = Twins(SpinConfig(enabled=True, policy="spin-paper"), SHAPE).reference
    table, lengths = torch.arange(10).int()[None], torch.tensor([600], dtype=torch.int32)
    with pytest.raises(ValueError, match="'numba' has no form"):
        fold_select(state, table, lengths, torch.tensor([1]), impl="numba")
    plan = fold_select(state, table, lengths, torch.tensor([1]), impl="reference")
    with pytest.raises(ValueError, match="impl must be 'triton', 'reference' or None"):
        observe(state, 0, torch.zeros(1, 640), plan, impl="numba")


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["spin", "prev-iter", "random", "dense"]),
    staleness=st.sampled_from([0.0, 0.4]),
    update=st.sampled_from(["accepted", "first"]),
    moves=st.booleans(),
)
def test_every_verify_step_is_the_same_bits(
    seed: int, policy: str, staleness: float, update: str, moves: bool
) -> None:
    """The same over steps that alternate between decode and verify, with random acceptance."""
    moves = moves and policy != "dense"
    config = SpinConfig(
        enabled=True,
        policy=policy,
        staleness=staleness,
        sparsity=0.5,
        verify_update=update,
        audit_every=3 if moves else 0,
        miss_slo=0.05 if moves else 0.0,
    )
    twins = Twins(config, verify_life.SHAPE, impl="numba")
    life = VerifyLife(seed, twins, divide=twins.divide if moves else None)
    for _ in range(30):
        life.act()
