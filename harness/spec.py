"""The spec of a campaign: what is sent, to which servers, how often, and within which limits."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.metric_map import unknown_changes
from harness.spec_arm import BASELINE, Arm, ArmName
from harness.spec_gate import Gate, ItlConvention, Slo
from harness.spec_types import Natural, Positive, Rate, Seconds, Share, Strict
from harness.spec_workload import ContextWork, Workload


class Warmup(Strict):
    """Probes before each run, until two in a row agree within `tolerance` of output tok/s."""

    prompt_tokens: Positive = 256
    output_tokens: Annotated[int, Field(ge=2)] = 16
    min_rounds: Positive = 2
    max_rounds: Positive = 4
    tolerance: Annotated[float, Field(gt=0)] = 0.02

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_rounds < self.min_rounds:
            raise ValueError("max_rounds must be at least min_rounds")
        return self


class Limits(Strict):
    """Deadlines in seconds, and what the client must keep to be trusted.

    stall_s bounds the silence of one stream, never its whole length. loop_lag_share: p99 of the
    client's lateness over the median ITL. loop_late_share: time it stood still over the window, in
    stops longer than the median ITL, or than loop_lag_share times that. campaign_s: no new pair is
    begun after so long; `harness resume` does the rest. repeats: so many times a pair is done
    again at once because the client was the limit and nothing else was wrong.
    repetition_gap: how far the arms' mean share of distinct 4-grams in the answers may differ.
    cached_gap: how far the cached tokens of a replayed trace may differ between the arms.
    """

    start_s: Seconds = 300
    flush_s: Seconds = 30
    prime_s: Seconds = 600
    idle_s: Seconds = 60
    stall_s: Seconds = 120
    load_s: Seconds = 3600
    campaign_s: Seconds | None = None
    repeats: Natural = 0
    loop_lag_share: Annotated[float, Field(ge=0)] = 0.2
    loop_late_share: Share = 0.02
    instant_gap_share: Share = 0.5
    repetition_gap: Share | None = None
    cached_gap: Share = 0.02


class Requirements(Strict):
    """What the machine must have, checked before anything starts.

    kv_tokens: KV entries that each server is meant to hold; the plan compares the need with it.
    """

    gpus: Natural = 0
    gpu_memory_gib: Natural = 0
    memory_gib: Natural = 0
    kv_tokens: Natural = 0


class Expect(Strict):
    """Measured before, for the plan's wall time alone: seconds, and tok/s of one server."""

    start_s: Seconds
    prefill_tok_s: Rate
    output_tok_s: Rate


class Spec(Strict):
    """A whole campaign.

    pairs: rounds in which every arm runs once; the order alternates (ABBA), seed picks the start.
    servers "together": all arms are up, only one is loaded; "swap": one server at a time.
    window: which tokens count for the headline throughput and ITL (metrics.py).
    metrics: other names of /metrics series, as regular expressions by meaning (metric_map.py).
    itl: which convention of inter-token latency is compared between the arms.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    workload: Workload
    arms: dict[ArmName, Arm]
    pairs: Positive = 3
    seed: Natural = 1
    servers: Literal["together", "swap"] = "together"
    window: Literal["full_batch", "occupancy_95", "full_run"] = "full_batch"
    itl: ItlConvention = "token"
    stop_on_invalid: bool = True
    gate: Gate | None = None
    slo: Slo | None = None
    warmup: Warmup = Warmup()
    limits: Limits = Limits()
    requires: Requirements = Requirements()
    expect: Expect | None = None
    metrics: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _metrics_are_known(self) -> Self:
        problems = unknown_changes(self.metrics)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _has_baseline_and_treatment(self) -> Self:
        if BASELINE not in self.arms:
            raise ValueError(f"arms must contain `{BASELINE}`, the baseline")
        if len(self.arms) < 2:
            raise ValueError("arms must contain at least one arm beside the baseline")
        if self.servers == "swap" and any(arm.base_url for arm in self.arms.values()):
            raise ValueError("servers `swap` needs commands, a server at base_url is always up")
        return self

    @model_validator(mode="after")
    def _work_fits(self) -> Self:
        work = self.workload
        context = work if isinstance(work, ContextWork) else None
        if context and context.prime == "once" and self.servers != "together":
            raise ValueError("workload.prime `once` needs servers `together`: a restart empties it")
        one_wave = context is not None and context.turns == 1 and work.arrival.kind == "closed"
        if self.window == "full_batch" and not one_wave:
            raise ValueError(
                "window `full_batch` needs a closed loop of single requests, set window: full_run"
            )
        if self.window == "occupancy_95" and work.arrival.kind != "closed":
            raise ValueError("window `occupancy_95` needs a closed loop, set window: full_run")
        if self.gate and (self.gate.max_pairs or self.pairs) < self.pairs:
            raise ValueError("gate.max_pairs must be at least pairs")
        return self

    @property
    def treatments(self) -> tuple[str, ...]:
        """Names of the arms that are compared with the baseline."""
        return tuple(name for name in self.arms if name != BASELINE)

    @property
    def most_pairs(self) -> int:
        """Pairs that may be run when the verdict stays inconclusive."""
        return (self.gate.max_pairs if self.gate else None) or self.pairs
