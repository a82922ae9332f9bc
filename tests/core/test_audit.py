"""The miss audit: who is audited when, what it finds, and that it only ever adds work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_spin.config import ConfigError, SpinConfig
from sglang_spin.core.audit import BINS, TALLIES, Audit, missed_edges, quantile
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment
from sglang_spin.core.step import Shape, SpinState
from sglang_spin.core.totals import pack, unpack
from tests.core import test_against_oracle as lives
from tests.core.audit_oracle import AuditOracle
from tests.core.engine_double import EngineDouble
from tests.core.moves import random_allotment

LAYERS, ROWS, BLOCKS, PAGES, TOPK = 3, 5, 24, 120, 100


class _Life(lives._Life):
    """The lives of the oracle test, audited; true scores have ties, zeros and odd values."""

    def __init__(self, seed: int, config: SpinConfig) -> None:
        super().__init__(seed, config)
        shape = Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK)
        self.state = SpinState(config, shape)
        self.engine = EngineDouble(self.state, PAGES, self.rng)
        self.oracle = AuditOracle(
            LAYERS,
            config.alpha,
            config.staleness,
            config.sparsity,
            3,
            topk=TOPK,
            turn=lambda *turn: _due(self.state.audit, *turn),
        )

    def move(self) -> None:
        """Divide the budget anew."""
        allotment = random_allotment(self.rng, LAYERS)
        self.state.budgets.set(allotment)
        self.oracle.sparsity, self.oracle.by_layer = allotment.sparsity, allotment.by_layer

    def step(self) -> None:
        rows = [r for r in self.engine.pages if self.engine.length[r] < BLOCKS * BLOCK - 1]
        for row in rows:
            self.engine.length[row] += 1
            self.oracle.drop(self.engine.grow(row))
        if not rows:
            return
        plan, lens = self.engine.begin(rows, int(self.rng.integers(0, 3)), 1)
        table = {r: self.engine.pages[r] for r in rows}
        lengths = {r: self.engine.length[r] for r in rows}
        kept = self.oracle.step(table, lengths)
        for layer in range(LAYERS):
            truth = np.stack([lives.random_scores(self.rng, BLOCKS * BLOCK) for _ in lens])
            self._compare(plan, layer, rows, table, kept)
            logits = self.engine.logits(plan, layer, truth, lens)
            self.state.observe(layer, logits, plan)
            self.state.add_audits(layer, logits, plan)
            for i, row in enumerate(rows):
                maxima = lives._maxima(truth[i], kept[layer, row], lengths[row])
                self.oracle.observe(layer, row, maxima)
                self.oracle.score(layer, row, truth[i, : lengths[row]])


def _due(audit: Audit, row: int, generation: int, step: int) -> bool:
    one = [torch.tensor([n]) for n in (row, generation, step)]
    return bool(audit.due(*one))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    every=st.sampled_from([1, 2, 5]),
    staleness=st.sampled_from([0.0, 0.4, 2.0]),
    sparsity=st.sampled_from([0.3, 0.5, 0.9]),
)
def test_what_audits_find_is_what_plain_sets_find(
    seed: int, every: int, staleness: float, sparsity: float
) -> None:
    """Kept blocks, misses, explorations and histogram equal the oracle's over random lives."""
    config = SpinConfig(
        enabled=True, staleness=staleness, sparsity=sparsity, audit_every=every, alpha=0.25
    )
    life = _Life(seed, config)
    life.open()
    for _ in range(30):
        getattr(life, life.rng.choice(["open", "close", "step"], p=[0.1, 0.05, 0.85]))()
    totals = unpack(pack(life.state), LAYERS, TOPK)
    for layer in range(LAYERS):
        found = life.oracle.found[layer]
        assert totals.layers[layer].audits == {name: found[name] for name in TALLIES}
        expected = [0] * BINS
        for missed in life.oracle.misses[layer]:
            expected[max(b for b in range(BINS) if missed_edges(TOPK)[b] <= missed)] += 1
        assert list(totals.layers[layer].histogram) == expected


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    every=st.sampled_from([1, 3, 32768]),
)
def test_layers_of_different_budgets(seed: int, every: int) -> None:
    """Kept blocks, lengths and misses equal the oracle's while layers change their classes."""
    config = SpinConfig(enabled=True, sparsity=0.5, audit_every=every, miss_slo=0.05)
    life = _Life(seed, config)
    life.open()
    for _ in range(40):
        acts = ["open", "close", "step", "move"]
        getattr(life, life.rng.choice(acts, p=[0.1, 0.05, 0.7, 0.15]))()
    totals = unpack(pack(life.state), LAYERS, TOPK)
    for layer in range(LAYERS):
        found = life.oracle.found[layer]
        assert totals.layers[layer].audits == {name: found[name] for name in TALLIES}


def test_a_row_is_audited_where_any_layer_would_skip() -> None:
    """The layer with the smallest budget decides, and the row is full in all layers."""
    config = SpinConfig(enabled=True, sparsity=0.5, audit_every=1, miss_slo=0.05)
    state = SpinState(config, Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK))
    state.budgets.set(Allotment(0.2, (0.6, 0.0), (1, 0, 1)))
    state.open_rows(torch.tensor([1]))
    table = torch.arange(BLOCKS, dtype=torch.int32)[None]
    for step in range(3):
        plan = state.begin(table, torch.tensor([1500 + step]).int(), torch.tensor([1]))
        for layer in range(LAYERS):
            logits = torch.randn(1, BLOCKS * BLOCK)
            state.observe(layer, logits, plan)
            state.add_audits(layer, logits, plan)
    assert plan.flags.audited.tolist() == [True]
    assert plan.lengths.tolist() == [[1502]] * LAYERS
    missed = state.audit.tallies[:, 1, TALLIES.index("missed")].tolist()
    assert missed[0] == missed[2] == 0 < missed[1]


def test_the_lives_miss_and_explore() -> None:
    """The comparison is not vacuous: there are audits, misses and blocks that came back."""
    life = _Life(5, SpinConfig(enabled=True, sparsity=0.5, audit_every=3))
    for _ in range(3):
        life.open()
    for _ in range(40):
        life.step()
    for found in life.oracle.found:
        assert found["audits"] >= 20
        assert 0 < found["missed"] < found["entries"]
        assert 0 < found["useful"] <= found["returned"]


@pytest.mark.parametrize("every", [1, 2, 3, 16, 256, 1000])
def test_every_row_has_its_turn_once_in_so_many_steps(every: int) -> None:
    """A row is audited exactly once in `every` steps, neighbouring rows in different steps."""
    audit = Audit(1, 4, every, TOPK)
    rows = torch.arange(1, min(every, 64) + 1)
    steps = torch.arange(every)
    due = torch.stack([audit.due(rows, torch.zeros_like(rows), step) for step in steps])
    assert (due.sum(0) == 1).all()
    assert due.sum(1).max() == 1


def test_requests_of_one_row_take_all_turns() -> None:
    """Short requests on the same row are audited too: their turns differ from life to life."""
    audit = Audit(1, 4, 256, TOPK)
    lives_ = torch.arange(256)
    row = torch.ones_like(lives_)
    first = [int(audit.due(row, lives_, torch.tensor(s)).nonzero()[0, 0]) for s in range(256)]
    assert sorted(first) == list(range(256))


def test_rows_that_skip_nothing_are_not_audited() -> None:
    """Short rows, dense serving and padding cannot miss, so they do not dilute the miss."""
    for policy, length in (("dense", 1500), ("spin", 100)):
        config = SpinConfig(enabled=True, policy=policy, audit_every=1)
        state = SpinState(config, Shape(LAYERS, ROWS, BLOCKS, PAGES, TOPK))
        state.open_rows(torch.tensor([1]))
        table = torch.arange(2 * BLOCKS).view(2, BLOCKS).int()
        for step in range(3):
            lengths = torch.tensor([length + step, 1], dtype=torch.int32)
            plan = state.begin(table, lengths, torch.tensor([1, 0]))
            for layer in range(LAYERS):
                state.observe(layer, torch.randn(2, BLOCKS * BLOCK), plan)
            assert not plan.flags.audited.any()


@given(st.lists(st.integers(0, 2048), min_size=1, max_size=300))
def test_the_quantile_is_never_too_low_and_a_bin_too_high_at_most(misses: list[int]) -> None:
    """p99 from the histogram lies between the true p99 and a seventh above it."""
    edges = missed_edges(2048)
    counts = [0] * BINS
    for missed in misses:
        counts[max(b for b in range(BINS) if edges[b] <= missed)] += 1
    true = sorted(misses)[-(-99 * len(misses) // 100) - 1] / 2048
    assert true <= quantile(counts, 0.99, 2048) <= true * 8 / 7 + 1e-9


def test_bytes_are_as_documented() -> None:
    """296 bytes a layer and row, and none without audits."""
    shape = Shape(3, 40, BLOCKS, PAGES, TOPK)
    bare = SpinState(SpinConfig(enabled=True), shape)
    audited = SpinState(SpinConfig(enabled=True, audit_every=8), shape)
    assert bare.audit is None
    edges = BINS * 4
    assert audited.nbytes - bare.nbytes == 3 * 40 * (40 + 256) + edges


@pytest.mark.parametrize("every", [-1, 32769])
def test_a_bad_period_is_named(every: Any) -> None:
    """A period out of range is one line that says what is valid."""
    with pytest.raises(ConfigError, match="audit_every must be 0 to 32768"):
        SpinConfig(audit_every=every)
