"""When requests start."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.spec_types import Rate, Seconds, Strict


class Closed(Strict):
    """A closed loop: `concurrency` streams, each starts the next when its last one ended.

    ramp_s: the streams start evenly spread over so many seconds instead of at once.
    """

    kind: Literal["closed"] = "closed"
    ramp_s: Annotated[float, Field(ge=0)] = 0


class Constant(Strict):
    """One start every 1 / per_s seconds, whether or not the server keeps up."""

    kind: Literal["constant"]
    per_s: Rate


class Poisson(Strict):
    """Starts with independent, exponentially distributed gaps of mean 1 / per_s seconds."""

    kind: Literal["poisson"]
    per_s: Rate


class Ramp(Strict):
    """Starts at a rate that goes from from_per_s to to_per_s over over_s seconds, then stays."""

    kind: Literal["ramp"]
    from_per_s: Annotated[float, Field(ge=0)]
    to_per_s: Rate
    over_s: Seconds

    @model_validator(mode="after")
    def _rises_or_falls(self) -> Self:
        if self.from_per_s == self.to_per_s:
            raise ValueError("from_per_s equals to_per_s, use kind constant")
        return self


class Recorded(Strict):
    """Starts as the trace recorded them, `speed` times as fast."""

    kind: Literal["recorded"]
    speed: Rate = 1.0


Arrival = Annotated[Closed | Constant | Poisson | Ramp, Field(discriminator="kind")]
TraceArrival = Annotated[Closed | Constant | Poisson | Ramp | Recorded, Field(discriminator="kind")]
