"""Bytes of SPIN's own operators."""

from __future__ import annotations

from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.slot_history import SlotHistory
from sglang_spin.lab.cost import operators, traffic
from sglang_spin.lab.cost.models import V4_FLASH, V4_PRO
from sglang_spin.lab.cost.traffic import Load

PUBLISHED = Load(context=507_000, batch=96, tp=8, index_format="fp8")
ONE = Load(context=507_000, batch=1, tp=8, index_format="fp8")
LINES = 96 * 21  # rows times indexer layers


def test_block_state_is_the_plugins() -> None:
    """The model counts the bytes that BlockHistory really holds for such rows."""
    history = BlockHistory(21, 1, 1981, alpha=0.5, staleness=0.1)
    assert operators.block_state_bytes(V4_FLASH, ONE) == history.nbytes


def test_slot_state_is_the_papers() -> None:
    """V and D of every slot: 8 B, as our `spin-paper` policy holds them."""
    history = SlotHistory(21, 1, 2)
    averages = history.vertical.nbytes + history.distance.nbytes
    assert averages == operators.STATE_PER_SLOT * 21 * 128


def test_slot_state_of_one_request() -> None:
    """A 507K request holds 21 MB with V4-Flash and 30 MB with V4-Pro."""
    assert round(operators.slot_state_bytes(V4_FLASH, ONE) / 1e6) == 21
    assert round(operators.slot_state_bytes(V4_PRO, ONE) / 1e6) == 30


def test_fold_select_reads_and_writes_the_state_once() -> None:
    """12 B a block, layer and row in each direction, in one launch."""
    work = operators.fold_select(V4_FLASH, PUBLISHED)
    assert (work.read, work.written, work.launches) == (LINES * 1981 * 12, LINES * 1981 * 12, 1)


def test_page_gather() -> None:
    """Every layer reads 4 B a block of the page table and writes page and id of kept blocks."""
    work = operators.page_gather(V4_FLASH, PUBLISHED, 1189)
    assert (work.read, work.written) == (LINES * 1981 * 4, LINES * 1189 * 8)


def test_observe_separate_reads_the_kept_logits_again() -> None:
    """A launch a layer: 4 B a kept entry and id read, 4 B a kept block written."""
    work = operators.observe(V4_FLASH, PUBLISHED, 1189, "separate")
    kept_entries = 126_750 - 792 * 64
    assert work.read == LINES * (kept_entries * 4 + 1189 * 4)
    assert (work.written, work.launches) == (LINES * 1189 * 4, 21)


def test_observe_fused_reads_no_logits_and_launches_nothing() -> None:
    """Inside the scorer only ids are read and maxima written."""
    work = operators.observe(V4_FLASH, PUBLISHED, 1189, "fused")
    assert (work.read, work.written, work.launches) == (LINES * 1189 * 4, LINES * 1189 * 4, 0)


def test_fused_operators_move_under_two_percent_of_dense_scoring() -> None:
    """At the published load, nothing skipped, all our operators move below 2 % of the scorer."""
    moved = (
        operators.fold_select(V4_FLASH, PUBLISHED).moved
        + operators.page_gather(V4_FLASH, PUBLISHED, 1981).moved
        + operators.observe(V4_FLASH, PUBLISHED, 1981, "fused").moved
    )
    assert moved < 0.02 * traffic.scoring(V4_FLASH, PUBLISHED, 1981).moved
