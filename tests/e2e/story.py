"""A long story of requests: random lengths, branches off earlier turns, aborts and flushes.

Told wave by wave, since a later turn continues what an earlier one was answered. The first server
that it is told to writes it; the others get the same prompts, so that answers can be compared.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.e2e.prompts import prompt
from tests.e2e.server import Server

LONGEST = 900
AT_ONCE = 8


@dataclass(frozen=True)
class Turn:
    """A request. leave_s: seconds after which its user leaves, or None."""

    number: int
    tokens: list[int]
    answer: int
    leave_s: float | None


@dataclass
class Answer:
    tokens: list[int]
    aborted: bool
    cached: int


@dataclass
class Story:
    """waves: the turns, in waves that are sent at once; flushes: waves after which to flush."""

    waves: list[list[Turn]] = field(default_factory=list)
    flushes: set[int] = field(default_factory=set)

    @property
    def turns(self) -> int:
        return sum(len(wave) for wave in self.waves)


def write(
    server: Server, turns: int, seed: int, pause: Callable[[int], None]
) -> tuple[Story, dict[int, Answer]]:
    """Tell a new story to `server`; what it was and what was answered.

    pause: called after every wave with the number of turns told.
    """
    rng = random.Random(seed)
    story, answers = Story(), {}
    while story.turns < turns:
        known = [turn for wave in story.waves[-4:] for turn in wave]
        size = min(rng.randint(1, 30), turns - story.turns)
        wave = [_turn(rng, story.turns + i, known, answers) for i in range(size)]
        story.waves.append(wave)
        if rng.random() < 0.15:
            story.flushes.add(len(story.waves) - 1)
        answers |= _tell_wave(server, wave, flush=len(story.waves) - 1 in story.flushes)
        pause(len(answers))
    return story, answers


def tell(server: Server, story: Story, pause: Callable[[int], None]) -> dict[int, Answer]:
    """Tell a known story."""
    answers: dict[int, Answer] = {}
    for index, wave in enumerate(story.waves):
        answers |= _tell_wave(server, wave, flush=index in story.flushes)
        pause(len(answers))
    return answers


def _tell_wave(server: Server, wave: list[Turn], *, flush: bool) -> dict[int, Answer]:
    """Send a wave, a few requests at once, and wait for it; then flush the cache, if asked to."""
    with ThreadPoolExecutor(AT_ONCE) as pool, ThreadPoolExecutor(AT_ONCE) as leavers:
        told = list(pool.map(lambda turn: _tell(server, turn, leavers), wave))
    if flush:
        server.flush()
    return dict(zip((turn.number for turn in wave), told, strict=True))


def _turn(rng: random.Random, number: int, known: list[Turn], answers: dict[int, Answer]) -> Turn:
    tokens: list[int] = []
    if known and rng.random() < 0.8:
        earlier = rng.choice(known)
        tokens = earlier.tokens + answers[earlier.number].tokens
        if rng.random() < 0.4 or len(tokens) > LONGEST:  # the user changes what was said before
            tokens = tokens[: rng.randint(1, len(tokens))]
    tokens = tokens + prompt(rng.choice([1, 5, 20, 64, 65, 200]), seed=number)
    leave = rng.uniform(0.02, 0.3) if rng.random() < 0.1 else None
    answer = 120 if leave is not None else rng.choice([1, 2, 4, 8, 16, 70])
    return Turn(number, tokens[:LONGEST], answer, leave)


def _tell(server: Server, turn: Turn, leavers: ThreadPoolExecutor) -> Answer:
    name = f"turn-{turn.number}"
    if turn.leave_s is not None:
        leavers.submit(_leave, server, name, turn.leave_s)
    reply = server.generate([turn.tokens], turn.answer, rid=[name])[0]
    meta = reply["meta_info"]
    # one that is left while it waits has neither tokens nor a cached prefix
    return Answer(
        reply.get("output_ids", []),
        meta["finish_reason"]["type"] == "abort",
        meta.get("cached_tokens", 0),
    )


def _leave(server: Server, name: str, seconds: float) -> None:
    time.sleep(seconds)
    server.post("/abort_request", {"rid": name})


def differences(left: dict[int, Answer], right: dict[int, Answer]) -> list[int]:
    """Turns whose answers differ; of aborted ones the part that both have is compared."""
    found = []
    for number in left:
        a, b = left[number], right[number]
        both = min(len(a.tokens), len(b.tokens))
        whole = a.aborted or b.aborted or len(a.tokens) == len(b.tokens)
        if not whole or a.tokens[:both] != b.tokens[:both]:
            found.append(number)
    return found


def summary(answers: dict[int, Answer]) -> dict[str, int]:
    """What kind of story it was."""
    count: Counter[str] = Counter()
    for answer in answers.values():
        count["requests"] += 1
        count["aborted"] += answer.aborted
        count["with a cached prefix"] += answer.cached > 0
        count["tokens"] += len(answer.tokens)
    return dict(count)
