"""One decode step of SPIN over all layers and rows, and the life of its state between steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sglang_spin.config import SpinConfig
from sglang_spin.core.audit import KEPT, RETURNED, Audit, Flags
from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import BlockHistory
from sglang_spin.core.budget import CLASSES, Allotment, Budgets, block_count
from sglang_spin.core.counter_random import block_noise
from sglang_spin.core.counters import Counters
from sglang_spin.core.policies import history_of
from sglang_spin.core.select import choose, compact
from sglang_spin.core.verify import fold_drafts, row_lengths

_NAN = float("nan")


class Plan(NamedTuple):
    """What the indexer layers of one step work on.

    pages: int32 [layers, rows, width], compact page tables. lengths: int32 [layers, rows *
    verify_rows], compact lengths, each line contiguous; layers of one budget may share their line.
    blocks: int32 [layers, rows, width], logical blocks of the columns. request_rows: int64 [rows].
    flags: of the audited rows, None if the state has no audits. A step that verifies drafts has
    several lengths and logits rows for each of these rows, request-major.
    """

    pages: Tensor
    lengths: Tensor
    blocks: Tensor
    request_rows: Tensor
    flags: Flags | None = None

    @property
    def verify_rows(self) -> int:
        """Logits rows of each request: 1 in plain decode."""
        return self.lengths.shape[1] // max(1, self.request_rows.shape[0])


class Shape(NamedTuple):
    """Sizes of the state. layers: indexer layers; rows: request rows, row 0 being the padding row;
    blocks: most blocks of a request; pages: physical page ids 0..pages - 1; index_topk: entries
    that attention reads; ratio: tokens that one entry stands for; verify_rows: most tokens of a
    request in one step."""

    layers: int
    rows: int
    blocks: int
    pages: int
    index_topk: int
    ratio: int = 1
    verify_rows: int = 1


class SpinState:
    """Everything SPIN remembers on one rank.

    Between steps, in stream order: open_rows, close_rows, drop_pages, drop_all_pages. In a step:
    begin once, then observe once per layer. All shapes depend on the batch alone, never on data.
    """

    def __init__(
        self, config: SpinConfig, shape: Shape, device: torch.device | str = "cpu"
    ) -> None:
        layers, rows, _, pages, index_topk = shape[:5]
        self.config, self.shape = config, shape
        self.budgets = budgets_of(config, shape, device)
        self.stashes = 1 if config.verify_update == "first" else shape.verify_rows
        self.history = history_of(config, layers, rows, shape.blocks, self.stashes, device)
        self.explore = config.explore if config.policy == "spin-paper" else 0.0
        self.counters = Counters(layers, device)
        every = config.audit_every
        self.audit = Audit(layers, rows, every, index_topk, device) if every else None
        self.fresh = torch.zeros(rows, dtype=torch.bool, device=device)
        self.generation = torch.zeros(rows, dtype=torch.int32, device=device)
        self.step = torch.zeros(rows, dtype=torch.int32, device=device)
        # of the last step: length of the first row, and rows of which scores are kept
        self.stashed = torch.zeros(rows, dtype=torch.int32, device=device)
        self.verified = torch.ones(rows, dtype=torch.int32, device=device)
        # the last entry takes writes that are not meant for any page
        self.prior = torch.full((layers, pages + 1), _NAN, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of state held on the device."""
        small = (self.fresh, self.generation, self.step, self.stashed, self.verified, self.prior)
        audit = self.audit.nbytes if self.audit else 0
        held = self.history.nbytes + self.budgets.nbytes + audit
        return held + sum(t.nbytes for t in small)

    def open_rows(self, rows: Tensor) -> None:
        """Hand request rows (int64 [n], none 0) to new requests: nothing of the old ones stays."""
        self.history.open(rows)
        self.fresh.index_fill_(0, rows, True)
        self.generation[rows] += 1
        self.step.index_fill_(0, rows, 0)
        self.stashed.index_fill_(0, rows, 0)

    def close_rows(self, row: Tensor, pages: Tensor, length: int | None = None) -> None:
        """Hand what is known of a finished request to its pages.

        row: int64 [1]; pages: int64 [n], the page of each of its logical blocks. length: tokens of
        the request; rows of the last step past it were not accepted. None: the first row was.
        """
        width = pages.shape[0]
        last = self.stashed[row]
        accepted = torch.ones_like(last) if length is None else length + 1 - last
        self._fold_accepted(row, torch.where(last > 0, accepted, 0), last, self.shape.blocks)
        self.stashed.index_fill_(0, row, 0)
        values = self.history.block_values(row, width)[:, 0]
        old = self.prior[:, pages]
        self.prior[:, pages] = torch.where(values.isnan(), old, values)

    def drop_pages(self, pages: Tensor) -> None:
        """Forget the prior of pages (int64 [n]) that get new content; shape.pages means none."""
        self.prior.index_fill_(1, pages, _NAN)

    def drop_all_pages(self) -> None:
        """Forget the prior of every page."""
        self.prior.fill_(_NAN)

    def begin(
        self, page_table: Tensor, lengths: Tensor, request_rows: Tensor, verify_rows: int = 1
    ) -> Plan:
        """Fold the last step, predict, select, and write the compact page tables.

        page_table: int32 [n, width], columns past a row's blocks stale. lengths: int32 [n], tokens
        of each row including the one of this step. request_rows: int [n], 0 for padding.
        verify_rows: tokens of each request in this step, at most shape.verify_rows; `lengths` then
        counts the first, and the table has the blocks of the last.
        """
        rows, width = request_rows.long(), page_table.shape[1]
        live = rows != 0
        last = (lengths + (verify_rows - 1)) // self.shape.ratio
        count = block_count(last)
        block = torch.arange(width, device=rows.device)
        valid = block < count[:, None]
        self._fold(rows, lengths, live, width)
        self._seed(rows, page_table, live, valid)
        ends = lengths // self.shape.ratio, last if verify_rows > 1 else None
        forced, cold, scores = self._forced(rows, *ends, live, valid)
        needed = (forced & valid).sum(-1, dtype=torch.int32).amax(0)
        least, budget = self.budgets.kept(count, needed, verify_rows)
        kept = choose(scores, forced, valid, budget, self._noise(rows, width), self.explore)
        flags = self._flags(rows, live & (least < count), kept, forced)
        if flags is not None:
            kept = kept | flags.audited[:, None] & valid
            budget = torch.where(flags.audited, count, budget)
        plan = compact(page_table, kept)
        self.history.mark(rows, kept, valid)
        self.counters.add_step(live, budget, count, cold)
        self.stashed[rows] = torch.where(live, lengths, 0)
        self.verified[rows] = min(verify_rows, self.stashes)
        self.step[rows] += 1
        # the newest blocks are kept, so all rows of a request shrink by the same
        skipped = BLOCK * (count - budget)
        compact_lengths = row_lengths(lengths, verify_rows, self.shape.ratio, skipped)
        return Plan(plan.pages, compact_lengths, plan.blocks, rows, flags)

    def observe(self, layer: int, logits: Tensor, plan: Plan) -> None:
        """Stash the scores of one indexer layer (0-based) for the next step's fold.

        logits: fp32 [n * verify_rows, >= width * 64], compact columns as the engine's scorer wrote
        them.
        """
        rows, blocks, n = plan.request_rows, plan.blocks[layer], plan.verify_rows
        lengths = plan.lengths[layer]
        self.history.observe(layer, rows, logits[::n], blocks, lengths[::n])
        for draft in range(1, min(n, self.stashes)):
            of_draft = logits[draft::n], blocks, lengths[draft::n]
            self.history.observe(layer, rows, *of_draft, draft)

    def add_audits(self, layer: int, logits: Tensor, plan: Plan) -> None:
        """Count what the prediction would have missed in one layer (0-based) of a step's audits.

        logits as for observe; of a request's rows the first is audited, which is never rejected.
        """
        if self.audit is not None and plan.flags is not None:
            n = plan.verify_rows
            first = logits[::n], plan.lengths[layer, ::n]
            self.audit.add(layer, plan.request_rows, *first, plan.flags)

    def _fold(self, rows: Tensor, lengths: Tensor, live: Tensor, width: int) -> None:
        last = self.stashed[rows]
        self._fold_accepted(rows, torch.where(live & (last > 0), lengths - last, 0), last, width)

    def _fold_accepted(self, rows: Tensor, accepted: Tensor, last: Tensor, width: int) -> None:
        self.history.fold(rows, accepted > 0, last // self.shape.ratio, width)
        if self.stashes > 1:
            assert isinstance(self.history, BlockHistory)
            kept = torch.minimum(accepted, self.verified[rows])
            fold_drafts(self.history, rows, kept, last, width, self.shape.ratio)

    def _seed(self, rows: Tensor, page_table: Tensor, live: Tensor, valid: Tensor) -> None:
        started = self.fresh[rows] & live
        usable = valid & started[:, None]
        pages = torch.where(usable, page_table, self.shape.pages).long()
        prior = self.prior[:, pages].masked_fill(~usable, _NAN)
        self.history.seed(rows, prior)
        self.counters.add_starts(started, ~prior[0].isnan(), valid)
        self.fresh[rows] = False

    def _forced(
        self, rows: Tensor, first: Tensor, last: Tensor | None, live: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks kept whatever their score, each row's cold blocks, and all scores, NaN-free."""
        width = valid.shape[1]
        block = torch.arange(width, device=rows.device)
        # several rows may begin a block, so the one before it is still the first row's newest
        newest = block_count(first if last is None else last - BLOCK)[:, None] - 1
        scores = self.history.predict(rows, first, width, last)
        cold = scores.isnan()
        pinned = (block == 0) | (block >= newest) | ~live[:, None]
        if self.config.policy == "random":
            scores = self._draw(rows, width).float()
        return (cold | pinned) & valid, (cold[0] & valid).sum(-1), scores.nan_to_num(0.0)

    def _flags(self, rows: Tensor, able: Tensor, kept: Tensor, forced: Tensor) -> Flags | None:
        """able: bool [n], rows of which something would be skipped: nothing else can miss."""
        if self.audit is None:
            return None
        audited = able & self.audit.due(rows, self.generation[rows], self.step[rows])
        returned = kept & ~forced & self.history.skipped(rows, kept.shape[-1])
        return Flags(audited, (kept * KEPT + returned * RETURNED).to(torch.uint8))

    def _noise(self, rows: Tensor, width: int) -> Tensor | None:
        return self._draw(rows, width) if self.explore else None

    def _draw(self, rows: Tensor, width: int) -> Tensor:
        return block_noise(
            self.config.seed, self.generation[rows], self.step[rows], self.shape.layers, width
        )


def budgets_of(config: SpinConfig, shape: Shape, device: torch.device | str) -> Budgets:
    """Every layer alike until a miss SLO moves budget between them, for which there is room."""
    sparsity = 0.0 if config.policy == "dense" else config.sparsity
    classes = min(CLASSES, shape.layers) if config.miss_slo and sparsity else 1
    even = Allotment.uniform(sparsity, shape.layers)
    return Budgets(even, shape.blocks, shape.index_topk, classes=classes, device=device)
