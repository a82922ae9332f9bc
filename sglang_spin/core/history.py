"""What a score history must offer to the step; one implementation per kind of state."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class History(Protocol):
    """Past indexer scores per (layer, request row), by logical position.

    `rows` is always int64 [n], the request rows of a batch; `width` the blocks looked at.
    """

    def open(self, rows: Tensor) -> None:
        """Forget everything about these rows."""

    def fold(self, rows: Tensor, accepted: Tensor, lengths: Tensor, width: int) -> None:
        """Take in the scores observed in the last step, where `accepted` (bool [n]).

        lengths: int [n], the row lengths of the step in which the scores were observed.
        """

    def seed(self, rows: Tensor, prior: Tensor) -> None:
        """Start blocks from fp32 `prior` [layers, n, width] where it is not NaN."""

    def predict(
        self, rows: Tensor, lengths: Tensor, width: int, last: Tensor | None = None
    ) -> Tensor:
        """fp32 [layers, n, width]; NaN marks cold blocks, which were never scored.

        last: int [n], lengths of the last row of each request, where it has several, the first
        being `lengths` long; a block gets the best of what it would get in the rows that have it.
        """

    def skipped(self, rows: Tensor, width: int) -> Tensor:
        """bool [layers, n, width]: blocks that the last step did not score; cold ones are any."""

    def mark(self, rows: Tensor, kept: Tensor, valid: Tensor) -> None:
        """Note which blocks (bool [layers, n, width]) will be scored in this step.

        valid: bool [n, width], the blocks that the rows have.
        """

    def observe(
        self,
        layer: int,
        rows: Tensor,
        logits: Tensor,
        blocks: Tensor,
        lengths: Tensor,
        draft: int = 0,
    ) -> None:
        """Stash the scores of one layer, of the request's row `draft` in this step.

        logits: fp32 [n, >= width * 64] in compact columns; blocks: int32 [n, width], the logical
        block of each compact page; lengths: int [n], compact lengths. Later columns are garbage.
        """

    def block_values(self, rows: Tensor, width: int) -> Tensor:
        """fp32 [layers, n, width] to hand on to later requests; NaN where nothing is known."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
