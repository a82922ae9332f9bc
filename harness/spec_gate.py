"""What must hold for a campaign to pass."""

from typing import Annotated, Literal

from pydantic import Field

from harness.spec_types import Positive, Share, Strict

Margin = Annotated[float, Field(gt=-1, lt=1)]
ItlConvention = Literal["token", "chunk", "arrival", "request_mean"]


class Margins(Strict):
    """How much worse than the baseline an arm may be, as a share of the baseline.

    A negative margin asks for a gain: -0.1 of output_tok_s is at least 10 % more throughput.
    """

    output_tok_s: Margin | None = 0.02
    itl_p50: Margin | None = 0.03


class Gate(Strict):
    """The verdict: PASS, FAIL or INCONCLUSIVE for every arm against the baseline.

    max_pairs: how far pairs are added while a verdict is inconclusive; `pairs` if not given.
    parity_floor: least mean share of an answer's tokens before it first differs from the
    baseline's. noise_floor: file that `harness calibrate` wrote; a margin below twice its
    half-width is refused.
    """

    margins: Margins = Margins()
    max_pairs: Positive | None = None
    parity_floor: Share | None = None
    noise_floor: str | None = None


class Slo(Strict):
    """Limits that a request must keep, all of those given, to count as good. Milliseconds.

    itl_ms is the mean time per token after the first chunk.
    """

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    itl_ms: Annotated[float, Field(gt=0)] | None = None
    e2e_ms: Annotated[float, Field(gt=0)] | None = None
