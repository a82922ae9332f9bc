"""The state of SPIN in one scheduler process, and what ties it to the engine's objects."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.core.step import Plan, Shape, SpinState
from sglang_spin.core.totals import Totals
from sglang_spin.engine.events import EventQueue
from sglang_spin.engine.fatal import die
from sglang_spin.engine.fused import FusedScorer
from sglang_spin.engine.hook import Evidence, Hook, Proof
from sglang_spin.engine.memory import require_memory
from sglang_spin.engine.metrics import Exporter
from sglang_spin.engine.reader import Reader, totals_now
from sglang_spin.engine.slo import SloKeeper
from sglang_spin.engine.telemetry import Telemetry
from sglang_spin.kernels.audit import audit
from sglang_spin.kernels.fold_select import Workspace, allocate, fold_select
from sglang_spin.kernels.observe import observe

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.engine.dsa import EnginePlan
    from sglang_spin.engine.v4 import CompactC4

logger = logging.getLogger(__name__)


class Runtime:
    """Created once per scheduler process, before the model; attached when the pools exist."""

    def __init__(self, config: SpinConfig, hooks: tuple[Hook, ...] = ()) -> None:
        self.config, self.hooks = config, hooks
        self.events = EventQueue()
        self.evidence = Evidence()
        self.state: SpinState | None = None
        self.workspace: Workspace | None = None
        self.fused: FusedScorer | None = None
        self.allocator: Any = None
        self.runner: Any = None
        self.block_tokens = BLOCK
        self.c4: CompactC4 | None = None
        self.layer_slots: dict[int, int] = {}
        self.observed: set[int] = set()
        self.proven = False
        self.decode_allocations = 0
        self.used_rows: set[int] = set()
        self.telemetry: Telemetry | None = None
        self.opened = self.closed = 0  # rows
        self.plan: Plan | None = None
        self.engine_plans: list[EnginePlan] = []  # of each layer

    def attach(
        self,
        runner: Any,
        allocator: Any,
        layers: list[int],
        *,
        ratio: int = 1,
        verify_rows: int = 1,
    ) -> None:
        """Size and allocate the state for a target model runner whose pools are allocated.

        allocator: of the pages whose numbers the index cache shares. layers: engine layer ids that
        own an indexer, ascending. ratio: tokens of an index entry. verify_rows: tokens that a
        speculative verify step scores per request, 1 without speculation.
        """
        if not layers:
            die("the model has no sparse indexer, so SPIN cannot act; start it with --no-spin")
        self.runner, self.allocator = runner, allocator
        self.block_tokens = BLOCK * ratio
        if allocator.page_size != self.block_tokens:
            die(f"a page has {allocator.page_size} tokens and a block {self.block_tokens}")
        if verify_rows > BLOCK:
            die(f"--speculative-num-draft-tokens {verify_rows} is above {BLOCK}, a block's entries")
        self.layer_slots = {layer: slot for slot, layer in enumerate(layers)}
        table = runner.req_to_token_pool.req_to_token
        shape = Shape(
            layers=len(layers),
            rows=table.shape[0],
            blocks=-(-table.shape[1] // self.block_tokens),
            pages=self.allocator.num_pages + 1,
            index_topk=runner.model_config.hf_config.index_topk,
            ratio=ratio,
            verify_rows=verify_rows,
        )
        require_memory(shape)
        self.state = SpinState(self.config, shape, runner.device)
        if self.config.scorer == "fused":
            self.fused = FusedScorer(self.state, runner.model_config.hf_config.index_n_heads)
        # static, so that a CUDA graph may record the step
        self.workspace = allocate(
            shape,
            shape.rows,
            shape.blocks,
            runner.device,
            audits=self.state.audit is not None,
            classes=self.state.budgets.classes,
        )
        logger.info(
            "SPIN %s at sparsity %s: %d indexer layers, %d rows of %d blocks, %.1f MB state",
            self.config.policy,
            self.config.sparsity,
            *shape[:3],
            (self.state.nbytes + self.workspace.nbytes) / 1e6,
        )

    def is_first_layer(self, layer: int) -> bool:
        """Whether a step begins at this layer: structural, since Python does not run on replay."""
        return self.layer_slots[layer] == 0

    def begin(
        self, page_table: Tensor, lengths: Tensor, request_rows: Tensor, verify_rows: int = 1
    ) -> Plan:
        """Begin a step: SpinState.begin, as one or two kernels on a GPU.

        lengths int32 [n]: tokens of the first of each request's verify_rows rows.
        """
        assert self.state is not None
        self.plan = fold_select(
            self.state,
            page_table,
            lengths,
            request_rows,
            verify_rows=verify_rows,
            workspace=self.workspace,
            fill_tail=False,
        )
        return self.plan

    def expect_scores(self, layer: int, plan: Plan) -> None:
        """The indexer of an engine layer took its page table and will score it."""
        if self.fused is not None:
            self.fused.expect(self.layer_slots[layer], plan)

    def observe(self, layer: int, logits: Tensor, plan: Plan) -> None:
        """Hand the scores of an engine layer to the state, unless the scorer has done so."""
        assert self.state is not None
        if self.fused is not None:
            self.fused.done()
        else:
            observe(self.state, self.layer_slots[layer], logits, plan)
        audit(self.state, self.layer_slots[layer], logits, plan)
        self.observed.add(layer)

    def start_telemetry(self, labels: dict[str, Any] | None) -> None:
        """Export metrics under the engine's labels; None if this rank exports none."""
        assert self.state is not None
        exporter = None if labels is None else Exporter(labels, list(self.layer_slots))
        keeper = SloKeeper(self.state) if self.config.miss_slo and self.config.sparsity else None
        self.telemetry = Telemetry(Reader(self.state), exporter, keeper)

    def after_decode(self) -> None:
        """After each decode forward, on its stream."""
        if self.telemetry is not None:
            self.telemetry.after_forward()

    def at_rest(self) -> None:
        """When the scheduler has nothing to do."""
        if self.telemetry is not None:
            self.telemetry.at_rest()

    def prove_decode(self) -> None:
        """After the first decode step (or its capture): every hook and every layer was reached."""
        if self.proven:
            return
        self._require(Proof.DECODE)
        if silent := sorted(set(self.layer_slots) - self.observed):
            die(f"indexer layer {silent[0]} ran without SPIN in the first decode step")
        self.proven = True

    def decode_allocated(self) -> None:
        """Count decode steps from the allocator's side, so that the proof has two witnesses.

        The forward hook cannot report that it never fires itself. A third allocation comes after
        the first forward, overlap included.
        """
        self.decode_allocations += 1
        if self.decode_allocations > 2 and not self.proven:
            self._require(Proof.DECODE)

    def rows_opened(self, rows: list[int]) -> None:
        """Note rows given out; a row that comes back without its release means a hook was lost."""
        if not self.used_rows.isdisjoint(rows):
            self._require(Proof.REUSE)
        self.used_rows.update(rows)
        self.opened += len(rows)

    def _require(self, proof: Proof) -> None:
        if missing := self.evidence.missing(self.hooks, proof):
            die(f"{missing[0]} was never reached by {proof.value}: SPIN would be inactive")

    def report(self) -> dict[str, object]:
        """The `spin` block of /server_info. Waits for the device."""
        assert self.state is not None
        return {
            "policy": self.config.policy,
            "target_sparsity": self.config.sparsity,
            "scorer": self.config.scorer,
            "layers": list(self.layer_slots),
            "state_bytes": self.state.nbytes,
            "sparsity": self.state.budgets.allotment.sparsity,
            "layer_sparsity": self.state.budgets.allotment.by_layer,
            "miss_slo": self.config.miss_slo,
            "audit_every": self.config.audit_every,
            "rows_opened": self.opened,
            "rows_closed": self.closed,
            **self.state.counters.read(),
            **_audits(totals_now(self.state)),
        }


def _audits(totals: Totals) -> dict[str, object]:
    """What the audits found since the start, per layer; None where nothing is known."""
    return {
        "audits": totals.audits,
        "miss_mean": [t.miss_mean for t in totals.layers],
        "miss_p99": [t.miss_p99 for t in totals.layers],
        "exploration_yield": [t.exploration_yield for t in totals.layers],
    }


_runtime: Runtime | None = None


def start(config: SpinConfig, hooks: tuple[Hook, ...]) -> Runtime:
    """Create this process's runtime, for the hooks that are about to be applied."""
    global _runtime
    _runtime = Runtime(config, hooks)
    return _runtime


def current() -> Runtime:
    """This process's runtime. Raises RuntimeError before start()."""
    if _runtime is None:
        raise RuntimeError("sglang_spin: no runtime in this process")
    return _runtime
