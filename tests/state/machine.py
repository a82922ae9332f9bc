"""Random lives of requests, as a state machine whose every step is checked against the truth."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.engine.events import EventQueue
from tests.state.device import SpinDevice
from tests.state.engine import Sizes, build
from tests.state.scheduler import STOP, VOCABULARY, Scheduler
from tests.state.truth import Person

SPARE = 8  # SGLang leaves a few slots of a row for what a step may add


class Lives(RuleBasedStateMachine):
    """operations, seen: totals over all examples of a run. queue: what takes SPIN's events.
    sizes: of the pools."""

    operations = 0
    seen: dict[str, int]
    queue: type[EventQueue] = EventQueue
    sizes = Sizes(rows=4, pages=16, context=11 * BLOCK, index_topk=100)

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        overlap=st.booleans(),
        chunk=st.sampled_from([1, 3, 16]),
        sparsity=st.sampled_from([0.3, 0.5, 0.9]),
        staleness=st.sampled_from([0.0, 0.4]),
        alpha=st.sampled_from([0.25, 1.0]),
        stop=st.sampled_from([0.0, 0.05]),
    )
    def start(self, seed, overlap, chunk, sparsity, staleness, alpha, stop) -> None:
        self.rng = np.random.default_rng(seed)
        config = SpinConfig(enabled=True, sparsity=sparsity, staleness=staleness, alpha=alpha)
        self.pools = build(self.sizes, config)
        self.pools.runtime.events = self.queue()
        self.device = SpinDevice(self.pools, config, self.rng, stop=stop)
        self.longest = self.sizes.context - SPARE
        chunk *= self.sizes.page
        self.scheduler = Scheduler(self.pools, self.device, overlap=overlap, chunk=chunk)
        self.heard: list[list[int]] = [self._words(self.longest) for _ in range(2)]
        self.submitted = 0

    def _words(self, count: int) -> list[int]:
        return self.rng.integers(STOP + 1, VOCABULARY, count).tolist()

    def _turn(self) -> bool:
        type(self).operations += 1
        return self.scheduler.iterate()

    @rule(
        story=st.integers(0, 7),
        shared=st.integers(0, 10),
        own=st.sampled_from([0, 0, 1, 30, 63, 64, 65, 150]),
        answer=st.sampled_from([1, 2, 40, 90, 250, 400]),
        twins=st.sampled_from([1, 1, 2, 3]),
    )
    def submit(self, story: int, shared: int, own: int, answer: int, twins: int) -> None:
        """A prompt that continues or branches off something heard before."""
        if len(self.scheduler.waiting) > 6:
            return
        known = self.heard[story % len(self.heard)]
        tokens = known[: shared * self.sizes.page] + self._words(own)
        tokens = (tokens or self._words(self.sizes.ratio))[: self.longest - answer]
        for _ in range(twins):
            type(self).operations += 1
            self.submitted += 1
            person = Person(self.submitted)
            person.extend(tokens)
            self.device.persons[str(self.submitted)] = person
            self.scheduler.submit(str(self.submitted), tokens, answer)
            self.heard.append(person.tokens)
        self.heard = self.heard[-8:]

    @rule(turns=st.integers(1, 24))
    def run(self, turns: int) -> None:
        """Some turns of the scheduler's loop."""
        for _ in range(turns):
            self._turn()

    @precondition(lambda self: self.scheduler.live)
    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        """The user leaves."""
        requests = [*self.scheduler.live, *self.scheduler.waiting]
        type(self).operations += 1
        self.scheduler.abort(requests[which % len(requests)])

    @rule(pages=st.integers(1, 12))
    def evict(self, pages: int) -> None:
        """The tree gives up pages."""
        type(self).operations += 1
        self.scheduler.evict(pages)

    @rule(everything=st.booleans(), leave=st.booleans())
    def come_to_rest(self, everything: bool, leave: bool) -> None:
        """Compare all state; first let all requests end, and flush then, if asked to."""
        while everything and not self.scheduler.idle:
            for request in self.scheduler.live if leave else ():
                self.scheduler.abort(request)
            self._turn()
        self.device.compare_at_rest()
        type(self).operations += 1
        if everything and leave:
            self.scheduler.flush()
            self.device.compare_at_rest()

    @invariant()
    def rows_add_up(self) -> None:
        """Every row is free or has one owner."""
        if hasattr(self, "device"):
            free = self.pools.rows.free_slots
            assert sorted([*free, *self.device.open]) == list(range(1, self.sizes.rows + 1))

    def teardown(self) -> None:
        if not hasattr(self, "device"):
            return
        while not self.scheduler.idle:
            self._turn()
        self.device.compare_at_rest()
        for key, value in self.device.count.items():
            self.seen[key] = self.seen.get(key, 0) + value
        self.seen["retractions"] = self.seen.get("retractions", 0) + self.scheduler.retractions
