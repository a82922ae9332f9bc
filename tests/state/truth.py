"""Who wrote what: plain bookkeeping of page slots and requests, and SPIN's method on top of it.

Keyed by what things are, never by where they are: a request by its own number, whatever row it is
given, and a page's content by the number of the write that began it, whatever page holds it. What
SPIN keeps by row and by page must agree at every step, or something was inherited or lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.core.oracle import Oracle


@dataclass
class Person:
    """A request as its user knows it. prefix[i] names tokens 0..i together."""

    number: int
    tokens: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    written: int = 0
    names: list[int] = field(default_factory=list)

    def extend(self, tokens: list[int]) -> None:
        name = self.prefix[-1] if self.prefix else 0
        for token in tokens:
            name = hash((name, token)) & ((1 << 62) - 1)
            self.prefix.append(name)
        self.tokens += tokens

    def forget(self, known: int) -> None:
        """Give up what was sampled in a step whose result nobody will look at."""
        del self.tokens[known:], self.prefix[known:]
        self.written, self.names = 0, []

    def moved(self, names: list[int]) -> int:
        """How many of its blocks another page holds now; names: of all its blocks' contents."""
        count = sum(a != b for a, b in zip(self.names, names, strict=False))
        self.names = names
        return count


class Truth:
    """content[slot]: name of the token prefix whose key the slot holds; write[slot]: which write
    put it there. Slots are page number * page size + offset, as in SGLang's allocator."""

    def __init__(self, pages: int, page: int, oracle: Oracle) -> None:
        self.page = page
        self.content = np.zeros((pages + 1) * page, dtype=np.int64)
        self.write = np.zeros((pages + 1) * page, dtype=np.int64)
        self.writes = 0
        self.oracle = oracle

    def store(self, person: Person, start: int, slots: np.ndarray) -> None:
        """A forward writes the keys of the person's tokens start, start + 1, ... into slots."""
        end = start + len(slots)
        self.content[slots] = person.prefix[start:end]
        self.write[slots] = np.arange(self.writes, self.writes + len(slots))
        self.writes += len(slots)
        person.written = end

    def pages(self, person: Person, slots: np.ndarray) -> list[int]:
        """Names of the contents of a row's pages; slots: its page table by token.

        AssertionError if a slot does not hold what the request wrote or could share.
        """
        expected = np.array(person.prefix[: len(slots)])
        assert np.array_equal(self.content[slots], expected), "the page table shows foreign keys"
        return self.write[slots[:: self.page]].tolist()

    def open(self, person: Person) -> None:
        """The request was given a row."""
        self.oracle.open(person.number)

    def close(self, person: Person, slots: np.ndarray, known: int) -> None:
        """The request gave its row back; `known` of its tokens are the user's."""
        full = min(known, person.written) // self.page * self.page
        names = self.pages(person, slots[:full])
        self.oracle.close(person.number, names)

    def prior(self, layer: int, page: int) -> float:
        """What the content of a page should hand on; NaN for nothing."""
        return float(self.oracle.prior.get((layer, self.write[page * self.page]), np.nan))
