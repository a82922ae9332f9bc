"""One run: one arm, one pair, all its requests, and what surrounded them."""

from dataclasses import dataclass, field

from harness.counters import SpinCounters
from harness.looplag import LoopLag
from harness.metrics import Window, full_run_window, occupancy_window
from harness.record import RequestRecord
from harness.spec import Spec
from harness.telemetry import Telemetry


@dataclass
class ArmRun:
    """Filled phase by phase; `problems` empty means the run is what the spec says.

    expected_cached: cached tokens of a primed context, whole pages.
    pair counts from 0; position is the place of the arm in the pair's order.
    spin is the difference of the counters over the load, None when the server has none.
    warm_tok_s: output rate of each warm-up round.
    telemetry, gpus: what the server and the GPUs said of themselves during the load.
    """

    arm: str
    pair: int
    position: int
    expected_cached: int = 0
    page_size: int = 1
    flushed: bool = False
    primed: bool = False
    warm_tok_s: list[float] = field(default_factory=list)
    warm_steady: bool = False
    records: list[RequestRecord] = field(default_factory=list)
    spin: SpinCounters | None = None
    lag: LoopLag = field(default_factory=LoopLag)
    telemetry: Telemetry = field(default_factory=Telemetry)
    gpus: Telemetry = field(default_factory=Telemetry)
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """How the run is named to a reader."""
        return f"pair {self.pair + 1} {self.arm}"

    def window(self, spec: Spec) -> Window | None:
        """The stretch of the run that the headline figures count."""
        return windows(self.records, spec.workload.concurrency)[spec.window]


def windows(records: list[RequestRecord], concurrency: int) -> dict[str, Window | None]:
    """All windows by name."""
    return {
        "full_batch": occupancy_window(records, concurrency),
        "occupancy_95": occupancy_window(records, -(-concurrency * 95 // 100)),
        "full_run": full_run_window(records),
    }
