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

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.rows,)

    def apply(self, state: SpinState) -> None:
        state.open_rows(self.rows)


@dataclass(frozen=True, slots=True)
class RowClosed:
    """A request ended. row: int64 [1]; pages: int64 [n], the page of each full logical block;
    length: its entries, not counting those of tokens that were rejected or came after its end."""

    row: Tensor
    pages: Tensor
    length: int

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.row, self.pages)

    def apply(self, state: SpinState) -> None:
        state.close_rows(self.row, self.pages, self.length)


@dataclass(frozen=True, slots=True)
class PagesTaken:
    """Pages will get new content. pages: int64 [n], the page count standing for none."""

    pages: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.pages,)

    def apply(self, state: SpinState) -> None:
        state.drop_pages(self.pages)


@dataclass(frozen=True, slots=True)
class CacheFlushed:
    """Every page was given back."""

    def tensors(self) -> tuple[Tensor, ...]:
        return ()

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
            event = self._events.popleft()
            for tensor in event.tensors():
                _keep_until_read(tensor)
            event.apply(state)


def _keep_until_read(tensor: Tensor) -> None:
    """Made on the scheduler's stream, its memory must outlive the use on this one."""
    if tensor.is_cuda:
        import torch

        tensor.record_stream(torch.cuda.current_stream())
