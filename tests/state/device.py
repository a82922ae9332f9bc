"""A device that runs forwards later than they are launched, and compares each with the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.budget import budget_floor
from sglang_spin.core.step import Plan
from sglang_spin.engine.hooks import runner as runner_hook
from tests.core.engine_double import compact_logits
from tests.core.oracle import SUSPECT, Oracle
from tests.state.engine import LAYERS, Pools
from tests.state.scheduler import STOP, VOCABULARY
from tests.state.truth import Person, Truth

PADDING_PAGE_LENGTH = 1
ODD = (np.nan, np.inf, -np.inf)


@dataclass
class _Step:
    """A decode step as launched: what it works on and what it must keep.

    owners: SGLang's generation of each row at the launch.
    """

    persons: list[Person]
    rows: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    owners: list[int]
    scores: np.ndarray
    kept: dict[tuple[int, int], set[int]]


class SpinDevice:
    """Runs launched work just before the next launch, as late as a stream may be.

    stop: chance that a sampled token ends its request. count: what happened, for the test to show.
    """

    def __init__(
        self, pools: Pools, config: SpinConfig, rng: np.random.Generator, *, stop: float
    ) -> None:
        self.pools, self.rng, self.stop = pools, rng, stop
        shape = pools.runtime.state.shape
        self.blocks, self.floor = shape.blocks, budget_floor(shape.index_topk)
        self.page, self.ratio = pools.sizes.page, pools.sizes.ratio
        numbers = (config.alpha, config.staleness, config.sparsity, self.floor, self.ratio)
        self.truth = Truth(shape.pages, self.page, Oracle(len(LAYERS), *numbers))
        self.persons: dict[str, Person] = {}
        self.open: dict[int, Person] = {}
        self.pending: list[_Step] = []
        self.count: Counter[str] = Counter()

    def launch(self, batch: ScheduleBatch) -> list[int]:
        """Queue a forward. What is in flight comes first on the stream, then the events."""
        self.run()
        step = self._decode(batch) if batch.forward_mode.is_decode() else self._extend(batch)
        self._forward(batch.forward_mode, step)
        tokens = [self._sample() for _ in batch.reqs]
        for req, token in zip(batch.reqs, tokens, strict=True):
            if batch.forward_mode.is_decode() or req is not batch.chunked_req:
                self.persons[req.rid].extend([token])
        return tokens

    def idle(self) -> None:
        """A forward without requests, and everything before it."""
        self.run()
        self._forward(ForwardMode.IDLE, None)

    def run(self) -> None:
        """Execute what was launched."""
        for step in self.pending:
            self._execute(step)
        self.pending = []

    def released(self, req: Req, row: int) -> None:
        person = self.open.pop(row)
        known = len(req.origin_input_ids) + len(req.output_ids_through_stop)
        self.truth.close(person, self._slots(row, len(person.prefix)), known)
        person.forget(known)
        self.count["closed"] += 1

    def compare_at_rest(self) -> None:
        """With nothing in flight: every row's history and every used page's prior."""
        self.idle()
        state, oracle = self.pools.runtime.state, self.truth.oracle
        for row, person in self.open.items():
            found = state.history.block_values(torch.tensor([row]), self.blocks)[:, 0].numpy()
            for layer in range(len(LAYERS)):
                known = oracle.rows[layer, person.number].vertical
                expected = [known.get(block, np.nan) for block in range(self.blocks)]
                same = np.array_equal(found[layer], np.float32(expected), equal_nan=True)
                assert same, f"history of row {row}: {found[layer]}, expected {expected}"
        for page in set(range(1, state.shape.pages)) - self.pools.free_pages():
            for layer in range(len(LAYERS)):
                expected = np.float32(self.truth.prior(layer, page))
                found = state.prior[layer, page].numpy()
                assert np.array_equal(found, expected, equal_nan=True), f"prior of page {page}"
                self.count["warm pages compared"] += not np.isnan(expected)
        assert state.prior[:, 0].isnan().all(), "the padding page has a prior"
        assert state.history.block_values(torch.tensor([0]), self.blocks).isnan().all()
        self._compare_counters(self.pools.runtime.report())

    def _compare_counters(self, counters: dict[str, Any]) -> None:
        found = (
            counters["steps"],
            counters["rows_seeded"] + counters["rows_cold"],
            counters["blocks_seeded"],
            counters["rows_opened"],
            counters["rows_closed"],
        )
        keys = ("decode steps", "starts", "seeded blocks", "opened", "closed")
        expected = tuple(self.count[key] for key in keys)
        assert found == expected, f"counted {found}, expected {expected}"

    def _forward(self, mode: ForwardMode, step: _Step | None) -> None:
        def original(_runner: Any, _batch: Any) -> None:
            if step is not None:
                self.pending.append(step)

        batch = SimpleNamespace(forward_mode=mode, _original_forward_mode=None)
        runner_hook._around_forward(original, self.pools.runtime.runner, batch)

    def _blocks(self, tokens: int) -> int:
        """Blocks of a row's whole entries."""
        return -(-(tokens // self.ratio) // BLOCK)

    def _sample(self) -> int:
        if self.rng.random() < self.stop:
            return STOP
        return int(self.rng.integers(STOP + 1, VOCABULARY))

    def _slots(self, row: int, length: int) -> np.ndarray:
        return self.pools.rows.req_to_token[row, :length].numpy().astype(np.int64)

    def _extend(self, batch: ScheduleBatch) -> None:
        slots = batch.out_cache_loc.numpy()
        starts = np.cumsum([0, *batch.extend_lens])
        for i, req in enumerate(batch.reqs):
            row, person = req.kv.req_pool_idx, self.persons[req.rid]
            if self.open.get(row) is not person:
                assert row not in self.open, "a row was given out twice"
                self.open[row] = person
                self.truth.open(person)
                self.count["opened"] += 1
                self.count["hit blocks"] += req.prefix_len // self.page
            self.truth.store(person, req.prefix_len, slots[starts[i] : starts[i + 1]])
            names = self.truth.pages(person, self._slots(row, req.extend_end))
            self.count["re-pointed blocks"] += person.moved(names)
            self.count["chunks"] += req is batch.chunked_req

    def _decode(self, batch: ScheduleBatch) -> _Step:
        lengths = batch.seq_lens_cpu.tolist()
        persons = [self.persons[req.rid] for req in batch.reqs]
        rows = [req.kv.req_pool_idx for req in batch.reqs]
        slots = batch.out_cache_loc.numpy()
        table: dict[int, list[int]] = {}
        for person, row, length, slot in zip(persons, rows, lengths, slots, strict=True):
            self.truth.store(person, length - 1, slot[None])
            names = self.truth.pages(person, self._slots(row, length))
            self.count["re-pointed blocks"] += person.moved(names)
            table[person.number] = names[: self._blocks(length)]
        self.count["decode steps"] += 1
        self.count["rows decoded"] += len(rows)
        oracle = self.truth.oracle
        for person in persons:
            if person.number in oracle.fresh:
                names = table[person.number]
                self.count["starts"] += 1
                self.count["seeded blocks"] += sum((0, name) in oracle.prior for name in names)
        sizes = {p.number: n for p, n in zip(persons, lengths, strict=True)}
        kept = oracle.step(table, sizes)
        room = self.pools.rows.size + 1 - len(rows)
        padding = int(self.rng.integers(0, min(3, room + 1)))
        step = _Step(
            persons,
            torch.tensor([*rows, *[0] * padding]),
            self._page_table(rows, padding),
            torch.tensor([*lengths, *[PADDING_PAGE_LENGTH] * padding], dtype=torch.int32),
            self.pools.rows.req_generation[rows].tolist(),
            self._scores(len(rows) + padding),
            kept,
        )
        self._tell_oracle(step)
        return step

    def _page_table(self, rows: list[int], padding: int) -> torch.Tensor:
        """Full width: behind a row's end stand the pages of the row's earlier owners."""
        starts = self.pools.rows.req_to_token[[*rows, *[0] * padding], :: self.page]
        return (starts // self.page)[:, : self.blocks].contiguous().int()

    def _scores(self, rows: int) -> np.ndarray:
        """No two blocks score alike, so that what one inherits from the other shows."""
        scores = self.rng.standard_normal((len(LAYERS), rows, self.blocks * BLOCK), np.float32)
        if self.rng.random() < 0.1:
            scores[0, 0, self.rng.integers(0, self.blocks * BLOCK)] = self.rng.choice(ODD)
        return scores

    def _tell_oracle(self, step: _Step) -> None:
        for i, person in enumerate(step.persons):
            end = int(step.lengths[i]) // self.ratio
            for layer in range(len(LAYERS)):
                field = step.scores[layer, i]
                maxima = {}
                for block in step.kept[layer, person.number]:
                    best = np.max(field[block * BLOCK : min(end, (block + 1) * BLOCK)])
                    maxima[block] = best if np.isfinite(best) else SUSPECT
                self.truth.oracle.observe(layer, person.number, maxima)

    def _execute(self, step: _Step) -> None:
        runtime = self.pools.runtime
        now = self.pools.rows.req_generation[step.rows[: len(step.persons)]].tolist()
        late = sum(a != b for a, b in zip(now, step.owners, strict=True))
        self.count["writes to a row with a new owner"] += late
        plan = runtime.begin(step.table, step.lengths, step.rows)
        for layer, engine_layer in enumerate(LAYERS):
            for i, person in enumerate(step.persons):
                kept = sorted(step.kept[layer, person.number])
                self._check(step, plan, layer, i, kept)
            logits = compact_logits(plan, layer, step.scores[layer], self.rng)
            runtime.observe(engine_layer, logits, plan)

    def _check(self, step: _Step, plan: Plan, layer: int, i: int, kept: list[int]) -> None:
        length = int(step.lengths[i])
        count = self._blocks(length)
        found = plan.blocks[layer, i, : len(kept)].tolist()
        assert found == kept, f"kept {found}, expected {kept} of {count} blocks"
        assert plan.pages[layer, i, : len(kept)].tolist() == step.table[i, kept].tolist()
        assert int(plan.lengths[layer, i]) == length // self.ratio - BLOCK * (count - len(kept))
        assert len(kept) >= min(count, self.floor)
        assert found[0] == 0
        assert found[-1] == count - 1
        self.count["sparse rows"] += len(kept) < count
