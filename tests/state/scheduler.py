"""SGLang's scheduling loop around its own requests, batches, admission and release.

The loop itself is written out here, since the real one needs a model; everything that touches rows,
pages or the tree is SGLang's: Req, PrefillAdder, ScheduleBatch, checkpoint_ and release_kv_cache.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tests.state.engine import Pools

VOCABULARY = 4096
STOP = 1  # the token that ends a request
NEW_TOKEN_RATIO = 0.1  # of the tokens that requests may still ask for: overcommits, so it retracts
_MODEL = SimpleNamespace(vocab_size=VOCABULARY, is_encoder_decoder=False)


class Device(Protocol):
    """Where batches run."""

    def launch(self, batch: ScheduleBatch) -> list[int]:
        """Start a forward pass; the tokens that it will sample."""

    def released(self, req: Req, row: int) -> None:
        """A request gave its row back."""


@dataclass
class _Launched:
    batch: ScheduleBatch
    tokens: list[int]


class Scheduler:
    """overlap: results are looked at one step late, as SGLang's overlap scheduler does."""

    def __init__(self, pools: Pools, device: Device, *, overlap: bool, chunk: int) -> None:
        self.pools, self.device = pools, device
        self.overlap, self.chunk = overlap, chunk
        self.waiting: list[Req] = []
        self.running = ScheduleBatch(reqs=[])
        self.last: ScheduleBatch | None = None
        self.chunked: Req | None = None
        self.chunk_aborted = False
        self.queue: deque[_Launched] = deque()
        self.retractions = 0

    def submit(self, name: str, tokens: list[int], new_tokens: int) -> Req:
        """Queue a request."""
        sampling = SamplingParams(max_new_tokens=new_tokens, stop_token_ids=[STOP])
        sampling.normalize(None)
        req = Req(name, "", array("q", tokens), sampling, vocab_size=VOCABULARY)
        self.waiting.append(req)
        return req

    @property
    def live(self) -> list[Req]:
        """Requests with a row, in no particular order."""
        found = [*self.running.reqs, *(self.last.reqs if self.last else ())]
        found += [req for launched in self.queue for req in launched.batch.reqs]
        found += [self.chunked] if self.chunked else []
        return [r for r in dict.fromkeys(found) if r.kv.holds_kv]

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.live or self.queue)

    def iterate(self) -> bool:
        """One turn of the loop; whether it launched a batch."""
        self._abort_chunked()
        self._merge_prefilled()
        batch = self._prefill() or self._decode()
        if batch is not None:
            self.queue.append(_Launched(batch.copy(), self.device.launch(batch)))
        if self.queue and (self.last is not None or not self.overlap):
            self._process(self.queue.popleft())
        self.last = batch
        return batch is not None

    def abort(self, req: Req) -> None:
        """As Scheduler.abort_request: at once while waiting, else at a safe moment."""
        if req in self.waiting:
            self.waiting.remove(req)
        elif req is self.chunked:
            self.chunk_aborted = True
        elif not req.finished():
            req.to_finish = FINISH_ABORT()

    def evict(self, pages: int) -> None:
        """Make the tree give up least recently used pages."""
        self.pools.tree.evict(EvictParams(num_tokens=pages * self.pools.sizes.page))

    def flush(self) -> None:
        """As Scheduler.flush_cache; only when idle."""
        assert self.idle
        self.last = None
        self.pools.tree.reset()
        self.pools.rows.clear()
        self.pools.allocator.clear()

    def _release(self, req: Req, *, checkpoint: bool) -> None:
        row = req.kv.req_pool_idx
        release_kv_cache(req, self.pools.tree, checkpoint=checkpoint)
        self.device.released(req, row)

    def _abort_chunked(self) -> None:
        if self.chunk_aborted and self.chunked is not None:
            self.chunked.finished_reason = FINISH_ABORT()
            self._release(self.chunked, checkpoint=False)
            self.chunked = None
        self.chunk_aborted = False

    def _merge_prefilled(self) -> None:
        exclude = []
        if self.chunked is not None:
            exclude.append(self.chunked)
            if self.chunked.extend_end > self.chunked.prefix_len:
                checkpoint_kv_cache(self.chunked, self.pools.tree)
        if self.last is not None and self.last.forward_mode.is_extend():
            if self.last.chunked_req is not None:
                exclude.append(self.last.chunked_req)
            self.last.filter_batch(reqs_to_exclude=exclude)
            if not self.last.is_empty():
                if self.running.is_empty():
                    self.running = self.last
                else:
                    self.running.merge_batch(self.last)
        self.running.filter_batch()

    def _prefill(self) -> ScheduleBatch | None:
        pools = self.pools
        adder = PrefillAdder(
            pools.sizes.page,
            pools.tree,
            pools.allocator,
            self.running,
            NEW_TOKEN_RATIO,
            1 << 20,
            self.chunk,
        )
        if self.chunked is not None:
            self.chunked.init_next_round_input()
            self.chunked = adder.add_chunked_req(self.chunked)
        for req in self.waiting:
            fresh = sum(not r.kv.holds_kv for r in adder.can_run_list)
            if fresh >= pools.rows.available_size():
                break
            req.init_next_round_input(pools.tree)
            result = adder.add_one_req(
                req, has_chunked_req=self.chunked is not None, truncation_align_size=None
            )
            if result.name != "CONTINUE":
                break
        if not adder.can_run_list:
            return None
        self.waiting = [r for r in self.waiting if r not in adder.can_run_list]
        if adder.new_chunked_req is not None:
            self.chunked = adder.new_chunked_req
        if self.chunked is not None:
            self.chunked.inflight_middle_chunks += 1
        batch = ScheduleBatch.init_new(
            adder.can_run_list,
            pools.rows,
            pools.allocator,
            pools.tree,
            _MODEL,
            self.overlap,
            SpeculativeAlgorithm.NONE,
            chunked_req=self.chunked,
        )
        batch.prepare_for_extend()
        return batch

    def _decode(self) -> ScheduleBatch | None:
        batch = self.running
        finishing = self._finishing_in_flight(batch)
        batch.filter_batch(reqs_to_exclude=finishing)
        if batch.is_empty():
            return None
        if not batch.check_decode_mem():
            if finishing:  # their result frees pages; the others decode a step later
                return None
            held = {req: req.kv.req_pool_idx for req in batch.reqs}
            retracted, _, aborted = batch.retract_decode()
            for req in (*retracted, *aborted):
                self.device.released(req, held[req])
            for req in aborted:
                req.finished_reason = req.to_finish
            self.waiting += retracted
            self.retractions += len(retracted)
        if batch.is_empty():
            return None
        batch.prepare_for_decode()
        return batch

    def _finishing_in_flight(self, batch: ScheduleBatch) -> list[Req]:
        queued = [req for launched in self.queue for req in launched.batch.reqs]
        return [r for r in batch.reqs if r in queued and r.next_output_finishes_by_length()]

    def _process(self, launched: _Launched) -> None:
        batch = launched.batch
        self.pools.allocator.free_group_begin()
        for req, token in zip(batch.reqs, launched.tokens, strict=True):
            prefill = batch.forward_mode.is_extend()
            if prefill and req.inflight_middle_chunks > 0:
                req.inflight_middle_chunks -= 1
                continue
            if req.finished() or req.is_retracted:
                continue  # ended while this step was in flight
            req.output_ids.append(token)
            req.update_finish_state()
            if req.finished():
                self._release(req, checkpoint=True)
            elif prefill:
                checkpoint_kv_cache(req, self.pools.tree)
        self.pools.allocator.free_group_end()
