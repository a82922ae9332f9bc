"""What is done with the counters while serving: export them, and hold the miss SLO."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sglang_spin.engine.reader import Reader

if TYPE_CHECKING:
    from sglang_spin.core.totals import Totals
    from sglang_spin.engine.metrics import Exporter
    from sglang_spin.engine.slo import SloKeeper


class Telemetry:
    """Driven by the runner's decode forwards and the scheduler's idle loop; reads nothing where
    neither metrics nor an SLO want it."""

    def __init__(self, reader: Reader, exporter: Exporter | None, keeper: SloKeeper | None) -> None:
        self.reader, self.exporter, self.keeper = reader, exporter, keeper

    def after_forward(self) -> None:
        """After each decode forward, on its stream."""
        if self.exporter is None and self.keeper is None:
            return
        totals = self.reader.after_forward()
        if totals is None:
            return
        self._export(totals)
        if self.keeper is not None:
            self.keeper.judge(totals)

    def at_rest(self) -> None:
        """When the scheduler has nothing to do. Waits for the device, if a forward ran since."""
        if self.exporter is None:
            return
        totals = self.reader.at_rest()
        if totals is not None:
            self._export(totals)

    def _export(self, totals: Totals) -> None:
        if self.exporter is not None:
            self.exporter.publish(totals, time.monotonic(), self.reader.state.budgets.allotment)


def metric_labels(scheduler: Any) -> dict[str, Any] | None:
    """Labels of the engine's own series if this rank exports any, else None."""
    context = scheduler.metrics_collector_context
    return dict(context.collector.labels) if context.current_scheduler_metrics_enabled else None
