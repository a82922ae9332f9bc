"""The spec of a campaign: what is sent, to which servers, how often, and within which limits.

Every class is frozen and refuses unknown keys: a misspelled key must never quietly lose a setting.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.metric_map import unknown_changes

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]

BASELINE = "stock"


class Strict(BaseModel):
    """Base of all parts of the spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RandomIds(Strict):
    """Prompt tokens drawn uniformly from [low, high)."""

    kind: Literal["random-ids"] = "random-ids"
    low: Natural = 16
    high: Positive = 1000

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.high <= self.low:
            raise ValueError(f"high ({self.high}) must be above low ({self.low})")
        return self


class TopicIds(Strict):
    """Prompt tokens in segments of one topic; topic t has the ids from low + t * ids_per_topic on.

    Gives KV blocks that differ in importance, which uniform random ids do not.
    """

    kind: Literal["topics"]
    low: Natural = 0
    topics: Positive
    ids_per_topic: Positive
    segment_min: Positive = 20
    segment_max: Positive = 200

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.segment_max < self.segment_min:
            raise ValueError("segment_max must be at least segment_min")
        return self


Content = Annotated[RandomIds | TopicIds, Field(discriminator="kind")]


class Workload(Strict):
    """One wave of requests; lengths in tokens.

    sharing "shared": every request continues the same cached context; "distinct": each its own.
    prime_output_tokens: generated on the context while priming, so that it has a decode history.
    prime "once": an arm's first run flushes and primes, later runs continue the same context with
    other suffixes; every run verifies what is cached.
    """

    cached_tokens: Positive
    new_tokens: Positive
    output_tokens: Annotated[int, Field(ge=2)]
    concurrency: Positive
    sharing: Literal["shared", "distinct"]
    requests: Positive | None = None
    prime_output_tokens: Positive = 1
    prime: Literal["each-run", "once"] = "each-run"
    content: Content = RandomIds()

    @model_validator(mode="after")
    def _enough_requests(self) -> Self:
        if self.requests is not None and self.requests < self.concurrency:
            raise ValueError(f"requests ({self.requests}) is below concurrency, lower concurrency")
        return self

    @property
    def request_count(self) -> int:
        """Requests of one run."""
        return self.requests or self.concurrency

    @property
    def lanes(self) -> int:
        """Number of different cached contexts."""
        return 1 if self.sharing == "shared" else self.request_count

    @property
    def prompt_tokens(self) -> int:
        """Length of every measured prompt."""
        return self.cached_tokens + self.new_tokens

    def resident_tokens(self) -> int:
        """KV entries needed while all streams of one wave are at their end."""
        grown = self.concurrency * (self.new_tokens + self.output_tokens)
        return self.lanes * (self.cached_tokens + self.prime_output_tokens) + grown


class SpinExpectation(Strict):
    """What the arm's server must report in `/server_info` for the arm to count as SPIN."""

    target_sparsity: Annotated[float, Field(ge=0, lt=1)]
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.03
    policy: str = "spin"


class Arm(Strict):
    """A server that the harness starts. `{port}` in the command is replaced; `python` is ours.

    spin None: the server must NOT report a spin block, or the baseline is not the baseline.
    api: the endpoint that requests go to; generate needs --incremental-streaming-output.
    """

    command: Annotated[str, Field(min_length=1)]
    api: Literal["completions", "chat", "generate"] = "completions"
    env: dict[str, str] = {}
    spin: SpinExpectation | None = None

    @model_validator(mode="after")
    def _takes_a_port(self) -> Self:
        if "{port}" not in self.command:
            raise ValueError("command must contain {port}, the harness chooses a free one")
        return self


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
    stops longer than the median ITL, or than loop_lag_share times that.
    """

    start_s: Seconds = 300
    flush_s: Seconds = 30
    prime_s: Seconds = 600
    idle_s: Seconds = 60
    stall_s: Seconds = 120
    load_s: Seconds = 3600
    loop_lag_share: Annotated[float, Field(ge=0)] = 0.2
    loop_late_share: Share = 0.02
    instant_gap_share: Share = 0.5


class Requirements(Strict):
    """What the machine must have, checked before anything starts."""

    gpus: Natural = 0
    gpu_memory_gib: Natural = 0
    memory_gib: Natural = 0


class Spec(Strict):
    """A whole campaign.

    pairs: rounds in which every arm runs once; the order alternates (ABBA), seed picks the start.
    servers "together": all arms are up, only one is loaded; "swap": one server at a time.
    window: which tokens count for the headline throughput and ITL (metrics.py).
    metrics: other names of /metrics series, as regular expressions by meaning (metric_map.py).
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    workload: Workload
    arms: dict[ArmName, Arm]
    pairs: Positive = 3
    seed: Natural = 1
    servers: Literal["together", "swap"] = "together"
    window: Literal["full_batch", "occupancy_95", "full_run"] = "full_batch"
    stop_on_invalid: bool = True
    warmup: Warmup = Warmup()
    limits: Limits = Limits()
    requires: Requirements = Requirements()
    metrics: dict[str, str] = {}

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
        if self.workload.prime == "once" and self.servers != "together":
            raise ValueError("workload.prime `once` needs servers `together`: a restart empties it")
        if len(self.arms) < 2:
            raise ValueError("arms must contain at least one arm beside the baseline")
        return self

    @property
    def treatments(self) -> tuple[str, ...]:
        """Names of the arms that are compared with the baseline."""
        return tuple(name for name in self.arms if name != BASELINE)
