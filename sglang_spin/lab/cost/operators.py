"""Bytes of what SPIN adds to a step: the paper's slot-level state, and our operators."""

from __future__ import annotations

from typing import Literal

from sglang_spin.lab.cost.models import ModelShape
from sglang_spin.lab.cost.traffic import ID, LOGIT, Load, Work, blocks, entries, kept_entries

Observe = Literal["separate", "fused"]

STATE_PER_SLOT = 8  # bytes: the paper's V and D, fp32, of every entry
STATE_PER_BLOCK = 12  # bytes: our V, D and recent score or age, of every block
MAXIMUM = 4  # bytes of a block maximum, fp32


def _lines(model: ModelShape, load: Load) -> int:
    """Rows of a batch over all indexer layers."""
    return load.batch * model.indexer_layers


def slot_state_bytes(model: ModelShape, load: Load) -> int:
    """HBM bytes the paper's state occupies."""
    return STATE_PER_SLOT * entries(model, load.context) * _lines(model, load)


def block_state_bytes(model: ModelShape, load: Load) -> int:
    """HBM bytes our state of these rows occupies."""
    return STATE_PER_BLOCK * blocks(model, load.context) * _lines(model, load)


def slot_state(model: ModelShape, load: Load) -> Work:
    """The paper's update and prediction: the state of every slot, read and written once."""
    state = slot_state_bytes(model, load)
    return Work(read=state, written=state)


def fold_select(model: ModelShape, load: Load) -> Work:
    """Our fold, prediction and selection: the state of every block, read and written once."""
    state = block_state_bytes(model, load)
    return Work(read=state, written=state, launches=1)


def page_gather(model: ModelShape, load: Load, kept: int) -> Work:
    """Compaction inside fold_select: every layer reads the page table, writes kept pages and ids.

    With it come the two launches that plan on compact lengths: scorer schedule and top-k plan.
    """
    lines = _lines(model, load)
    table = blocks(model, load.context) * ID
    return Work(read=lines * table, written=lines * kept * 2 * ID, launches=2)


def observe(model: ModelShape, load: Load, kept: int, how: Observe) -> Work:
    """Block maxima of the kept blocks. Separate: re-reads logits and block ids, one launch a layer.

    Fused into the scorer: the maxima never leave registers before they are written.
    """
    lines = _lines(model, load)
    written = lines * kept * MAXIMUM
    if how == "fused":
        return Work(read=lines * kept * ID, written=written)
    logits = lines * kept_entries(model, load.context, kept) * LOGIT
    return Work(read=logits + lines * kept * ID, written=written, launches=model.indexer_layers)
