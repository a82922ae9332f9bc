"""What prompts are made of. Paths are relative to where the harness is started."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.spec_types import Natural, Positive, Strict


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


class CorpusIds(Strict):
    """Stretches of a text that was tokenised before: a .npy of whole numbers, one dimension.

    Each prompt starts at a place of its own that the seed picks, and wraps around at the end.
    """

    kind: Literal["corpus"]
    path: str


class FileIds(Strict):
    """Prompts as given: a .jsonl with one list of token ids per line.

    A conversation continues line `i`, its context is the beginning of the line of its lane.
    """

    kind: Literal["file"]
    path: str


Content = Annotated[RandomIds | TopicIds | CorpusIds | FileIds, Field(discriminator="kind")]
