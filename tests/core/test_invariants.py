"""The promises of the design, one test each, where the oracle comparison does not name them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from sglang_spin.config import POLICIES, SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import Allotment, block_count, budget_floor, budget_table
from sglang_spin.core.step import Plan, Shape, SpinState

SHAPE = Shape(layers=2, rows=4, blocks=40, pages=200, index_topk=300)


def _state(policy: str = "spin", sparsity: float = 0.5) -> SpinState:
    return SpinState(SpinConfig(enabled=True, policy=policy, sparsity=sparsity), SHAPE)


def _step(state: SpinState, rows: list[int], lengths: list[int], seed: int = 0) -> Plan:
    """One step with distinct pages per row and random scores."""
    generator = torch.Generator().manual_seed(seed)
    width = max(-(-n // BLOCK) for n in lengths)
    owner = torch.tensor(rows)
    table = (owner[:, None] * SHAPE.blocks + torch.arange(width)).int()
    plan = state.begin(table, torch.tensor(lengths, dtype=torch.int32), owner)
    for layer in range(SHAPE.layers):
        logits = torch.randn(len(rows), width * BLOCK, generator=generator)
        state.observe(layer, logits, plan)
    return plan


def _kept(plan: Plan, layer: int, i: int) -> list[int]:
    return plan.blocks[layer, i, : int(block_count(plan.lengths[layer, i]))].tolist()


def _memory(state: SpinState) -> dict[str, torch.Tensor]:
    tensors = {f"history.{k}": v for k, v in vars(state.history).items()}
    tensors |= vars(state)
    return {k: v.clone() for k, v in tensors.items() if isinstance(v, torch.Tensor)}


@given(length=st.integers(1, 40 * BLOCK), sparsity=st.floats(0, 0.99), topk=st.integers(1, 4000))
def test_attention_never_reads_padding(length: int, sparsity: float, topk: int) -> None:
    """Kept entries are at least min(length, index_topk), because attention reads that many."""
    count = -(-length // BLOCK)
    kept = int(budget_table(40, sparsity, budget_floor(topk))[count])
    assert length - BLOCK * (count - kept) >= min(length, topk)


@given(blocks=st.integers(0, 500), sparsity=st.sampled_from([0.1, 0.3, 0.4, 0.5, 0.7]))
def test_budgets_are_exact(blocks: int, sparsity: float) -> None:
    """ceil((1 - sparsity) * n) by decimal arithmetic, not by what a float product rounds to."""
    tenths = round(sparsity * 10)
    kept = int(budget_table(500, sparsity, 1)[blocks])
    assert kept == min(blocks, max(1, -(-(10 - tenths) * blocks // 10)))


@pytest.mark.parametrize("policy", POLICIES)
def test_first_and_newest_block_are_kept_and_newest_is_last(policy: str) -> None:
    """The attention sink and the growing block are never predicted away."""
    state = _state(policy, sparsity=0.9)
    state.open_rows(torch.tensor([1, 2]))
    for i in range(70):
        lengths = [20 * BLOCK + i, 11 * BLOCK + i]
        plan = _step(state, [1, 2], lengths, seed=i)
        for layer in range(SHAPE.layers):
            for row in range(2):
                kept = _kept(plan, layer, row)
                assert kept[0] == 0
                assert kept[-1] == -(-lengths[row] // BLOCK) - 1
                assert kept == sorted(set(kept))


@pytest.mark.parametrize("policy", ["spin", "spin-paper", "prev-iter", "random"])
def test_cold_blocks_are_kept_until_scored(policy: str) -> None:
    """A new request is scored in full once; from the second step on it skips."""
    state = _state(policy)
    state.open_rows(torch.tensor([1]))
    first = _step(state, [1], [1700])
    second = _step(state, [1], [1701])
    assert first.lengths[0].tolist() == [1700]
    assert second.lengths[0].tolist() == [1701 - BLOCK * 13]


@pytest.mark.parametrize("policy", ["spin", "spin-paper", "prev-iter", "random"])
def test_every_policy_keeps_each_layers_own_budget(policy: str) -> None:
    """Layers of different classes keep as many blocks as their class may, whatever the policy."""
    config = SpinConfig(enabled=True, policy=policy, sparsity=0.5, audit_every=32768, miss_slo=0.05)
    state = SpinState(config, SHAPE)
    state.budgets.set(Allotment(0.5, (0.75, 0.25), (1, 0)))
    state.open_rows(torch.tensor([1, 2]))
    for i in range(4):
        plan = _step(state, [1, 2], [32 * BLOCK - 5 + i, 20 * BLOCK - 5 + i], seed=i)
    assert [[len(_kept(plan, layer, row)) for row in (0, 1)] for layer in (0, 1)] == [
        [24, 14],
        [8, 6],
    ]
    assert (plan.lengths[0] - plan.lengths[1]).tolist() == [16 * BLOCK, 8 * BLOCK]


@pytest.mark.parametrize("policy", ["spin", "spin-paper"])
def test_all_negative_scores_do_not_lose_to_nothing(policy: str) -> None:
    """Zero is not the lowest score: with negative scores the best blocks still win."""
    state = _state(policy)
    state.open_rows(torch.tensor([1]))
    table = torch.arange(30, dtype=torch.int32)[None]
    best = {3, 17, 22}
    for i in range(6):
        plan = state.begin(table, torch.tensor([1800 + i], dtype=torch.int32), torch.tensor([1]))
        for layer in range(SHAPE.layers):
            value = torch.full((30,), -50.0)
            value[list(best)] = -1.0
            columns = value[plan.blocks[layer, 0].long()].repeat_interleave(BLOCK)
            state.observe(layer, columns[None], plan)
    assert best <= set(_kept(plan, 0, 0))


def test_padding_rows_write_nothing_and_keep_everything() -> None:
    """Rows of the padding slot leave the state of every request as it was."""
    alone, padded = _state(), _state()
    for state, extra in ((alone, 0), (padded, 3)):
        state.open_rows(torch.tensor([1]))
        for i in range(5):
            plan = _step(state, [1] + [0] * extra, [1500 + i] + [1] * extra, seed=9)
            assert plan.lengths[0, 1:].tolist() == [1] * extra
    one, other = _memory(alone), _memory(padded)
    assert torch.equal(one["generation"], other["generation"])
    for name in ("history.vertical", "history.distance", "history.recent"):
        same = one[name][:, 1:].view(torch.int32) == other[name][:, 1:].view(torch.int32)
        assert same[:, 1:].all()
    assert alone.counters.seen.tolist() == padded.counters.seen.tolist()


@pytest.mark.parametrize("policy", ["spin", "spin-paper"])
def test_a_reused_row_remembers_nothing(policy: str) -> None:
    """A row's next request plans exactly as it would on a fresh state."""
    used, fresh = _state(policy), _state(policy)
    used.open_rows(torch.tensor([2]))
    for i in range(4):
        _step(used, [2], [2000 + i], seed=i)
    for state in (used, fresh):
        state.open_rows(torch.tensor([2]))
    fresh.generation.copy_(used.generation)  # it seeds random numbers, and is meant to differ
    for i in range(4):
        a, b = (_step(s, [2], [1000 + i], seed=50 + i) for s in (used, fresh))
        assert torch.equal(a.pages, b.pages)
        assert torch.equal(a.lengths, b.lengths)


def test_a_page_taken_again_hands_nothing_on() -> None:
    """The prior of a page dies when the page is handed out, and with a flush."""
    for forget in (lambda s: s.drop_pages(torch.tensor([3, 4])), SpinState.drop_all_pages):
        state = _state()
        state.open_rows(torch.tensor([1]))
        _step(state, [1], [640])
        pages = torch.tensor([3, 4, 5])
        state.close_rows(torch.tensor([1]), pages)
        assert not state.prior[:, 3:6].isnan().any()
        forget(state)
        assert state.prior[:, 3:5].isnan().all()
        assert state.prior[:, SHAPE.pages].isnan().all()


def test_an_unfolded_step_is_not_lost_at_the_end() -> None:
    """A request of one decode step hands on what that step observed, though no step followed."""
    state = _state()
    state.open_rows(torch.tensor([1]))
    _step(state, [1], [640])
    state.close_rows(torch.tensor([1]), torch.arange(10, 20))
    assert not state.prior[:, 10:20].isnan().any()


def test_a_repeated_length_is_not_folded() -> None:
    """A step whose token was not accepted (the length did not grow) leaves no trace."""
    state = _state()
    state.open_rows(torch.tensor([1]))
    _step(state, [1], [640])
    _step(state, [1], [640])
    assert state.history.vertical[:, 1].isnan().all()
    _step(state, [1], [641])
    assert not state.history.vertical[:, 1, :10].isnan().any()


@pytest.mark.parametrize("policy", ["spin", "spin-paper"])
def test_a_narrower_batch_after_a_rejected_step(policy: str) -> None:
    """A row that shrank below its stash, widest of a narrow table: once an index past the end."""
    state = _state(policy)
    state.open_rows(torch.tensor([1]))
    _step(state, [1], [71])
    plan = _step(state, [1], [1])
    assert plan.lengths[0].tolist() == [1]


@pytest.mark.parametrize(
    ("policy", "slo"), [*((p, 0.0) for p in POLICIES), ("spin", 0.05), ("spin-paper", 0.05)]
)
@settings(deadline=None, max_examples=3)
@given(rows=st.integers(1, 3))
def test_a_step_needs_no_host(policy: str, slo: float, rows: int) -> None:
    """Under fake tensors, which hold no data, a step runs: no value decides a shape or a branch."""
    config = SpinConfig(enabled=True, policy=policy, audit_every=8, miss_slo=slo)
    with FakeTensorMode():
        state = SpinState(config, SHAPE)
        owners = torch.empty(rows, dtype=torch.int64)
        table = torch.empty(rows, 40, dtype=torch.int32)
        lengths = torch.empty(rows, dtype=torch.int32)
        plan = state.begin(table, lengths, owners)
        state.observe(0, torch.empty(rows, 40 * BLOCK), plan)
        state.open_rows(owners)
        state.drop_pages(owners)
        assert plan.pages.shape == (2, rows, 40)
