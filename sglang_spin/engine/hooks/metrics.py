"""The scheduler's idle loop: the last steps before it reach /metrics too."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target


def _before_idle(_scheduler: Any) -> None:
    runtimes.current().at_rest()


HOOKS = (
    Hook(
        Target(
            name="sglang.srt.managers.scheduler:Scheduler.on_idle",
            expect="1dc29def553de8de",
            why="counters are read every so many steps, so the last ones of a burst need a moment",
            drop_when="plugins get a periodic callback in the scheduler process",
        ),
        How.BEFORE,
        _before_idle,
        Proof.RARE,
    ),
)

# not patched: whose labels and whose choice of ranks the series take over
RELIED_ON = (
    Target(
        name="sglang.srt.observability.metrics_collector:SchedulerMetricsCollector.init_new",
        expect="d00becb0a92f66eb",
        why="the engine's own labels, and which ranks export",
        drop_when="plugins can add series to the engine's collector",
    ),
)
