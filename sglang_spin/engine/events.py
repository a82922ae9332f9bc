"""What happened to rows and pages on the scheduler's side, applied to the state in stream order.

The scheduler runs a step ahead of the device, so nothing may touch the state when it is reported: a
step still in flight belongs to the old owner. The queue is drained before the next forward, on its
stream.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import SpinState


@dataclass(frozen=True, slots=True)
class RowsOpened:
    """Request rows were given to new requests. rows: int64 [n]."""

    rows: Tensor

    def apply(self, state: SpinState) -> None:
        state.open_rows(self.rows)


@dataclass(frozen=True, slots=True)
class RowClosed:
    """A request ended. row: int64 [1]; pages: int64 [n], the page of each full logical block."""

    row: Tensor
    pages: Tensor

    def apply(self, state: SpinState) -> None:
        state.close_rows(self.row, self.pages)


@dataclass(frozen=True, slots=True)
class PagesTaken:
    """Pages will get new content. pages: int64 [n], the page count standing for none."""

    pages: Tensor

    def apply(self, state: SpinState) -> None:
        state.drop_pages(self.pages)


@dataclass(frozen=True, slots=True)
class CacheFlushed:
    """Every page was given back."""

    def apply(self, state: SpinState) -> None:
        state.drop_all_pages()


Event = RowsOpened | RowClosed | PagesTaken | CacheFlushed


class EventQueue:
    """Events of the scheduler, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def put(self, event: Event) -> None:
        """Report an event from the scheduler."""
        self._events.append(event)

    def drain(self, state: SpinState) -> None:
        """Apply all of them, on the stream of the forward that follows."""
        while self._events:
            self._events.popleft().apply(state)
