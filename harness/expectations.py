"""What the server must report for each request of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.parity import equal_prefix
from harness.prompts import recorded_answer
from harness.record import RequestRecord
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.work import Ask, asks_of


@dataclass(frozen=True, slots=True)
class Expected:
    """Token counts of one request. cached: least and most; equal where it must be exact."""

    prompt_tokens: int
    output_tokens: int
    cached: tuple[int, int]


def expectations(run: ArmRun, spec: Spec) -> list[Expected]:
    """One per record of the run, in order.

    First turns find their primed context, whole pages of it. Later turns find the prompt before
    them, and as much of what the server said to it as agrees with the recorded answer.
    """
    asks = asks_of(spec)
    return [_expected(run, spec, asks[record.index]) for record in run.records]


def _expected(run: ArmRun, spec: Spec, ask: Ask) -> Expected:
    if ask.at_most_cached is not None:
        cached = (0, ask.at_most_cached)
    elif ask.turn == 0:
        cached = (run.expected_cached, run.expected_cached)
    else:
        whole = _after_turn(run, spec, asks_of(spec)[ask.index - 1]) // run.page_size
        cached = (whole * run.page_size, whole * run.page_size)
    return Expected(ask.prompt_tokens, ask.output_tokens, cached)


def _after_turn(run: ArmRun, spec: Spec, before: Ask) -> int:
    """Tokens of the next prompt that the server has in its cache after the turn `before`.

    Of what it said, the last token was never fed back and is in no cache.
    """
    said = _output_ids(run.records, before.index)[:-1]
    return before.prompt_tokens + equal_prefix(
        said, recorded_answer(spec, run.pair, before).tolist()
    )


def _output_ids(records: Sequence[RequestRecord], index: int) -> list[int]:
    return list(records[index].output_ids)
