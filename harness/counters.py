"""SPIN's cumulative counters in `/server_info`, and what they say about one window of load."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class CounterError(Exception):
    """The counters are malformed, or two snapshots do not belong together."""


@dataclass(frozen=True)
class SpinCounters:
    """Sums over all ranks that report; kept_blocks and seen_blocks are per indexer layer.

    Also the difference of two snapshots, and the sum of several differences.
    """

    policy: str
    target_sparsity: float
    steps: int
    rows_seeded: int
    rows_cold: int
    blocks_seeded: int
    blocks_cold: int
    kept_blocks: tuple[int, ...]
    seen_blocks: tuple[int, ...]

    @property
    def kept_share(self) -> list[float | None]:
        """kept / seen per layer; None for a layer that saw no block."""
        return [
            kept / seen if seen else None
            for kept, seen in zip(self.kept_blocks, self.seen_blocks, strict=True)
        ]

    @property
    def realised_sparsity(self) -> float | None:
        """1 - sum kept / sum seen over all layers; None when no block was seen."""
        seen = sum(self.seen_blocks)
        return 1 - sum(self.kept_blocks) / seen if seen else None

    def since(self, before: "SpinCounters") -> "SpinCounters":
        """What happened between two snapshots. Raises CounterError if a counter fell."""
        delta = _elementwise(operator.sub, self, before)
        totals = (delta.steps, delta.rows_seeded, delta.rows_cold)
        if min(*totals, *delta.kept_blocks, *delta.seen_blocks) < 0:
            raise CounterError("a SPIN counter fell during the load: the server restarted")
        return delta

    def plus(self, other: "SpinCounters") -> "SpinCounters":
        """Join two differences of one arm."""
        return _elementwise(operator.add, self, other)


def _elementwise(
    apply: Callable[[int, int], int], one: SpinCounters, two: SpinCounters
) -> SpinCounters:
    def layers(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        if len(left) != len(right):
            raise CounterError(f"number of SPIN layers changed from {len(right)} to {len(left)}")
        return tuple(apply(a, b) for a, b in zip(left, right, strict=True))

    return SpinCounters(
        policy=one.policy,
        target_sparsity=one.target_sparsity,
        steps=apply(one.steps, two.steps),
        rows_seeded=apply(one.rows_seeded, two.rows_seeded),
        rows_cold=apply(one.rows_cold, two.rows_cold),
        blocks_seeded=apply(one.blocks_seeded, two.blocks_seeded),
        blocks_cold=apply(one.blocks_cold, two.blocks_cold),
        kept_blocks=layers(one.kept_blocks, two.kept_blocks),
        seen_blocks=layers(one.seen_blocks, two.seen_blocks),
    )


def spin_counters(server_info: dict[str, Any]) -> SpinCounters | None:
    """Read the counters, summed over ranks. None when no rank reports any.

    Raises CounterError when only some ranks report, when they disagree, or when a field is missing.
    """
    states = server_info.get("internal_states") or []
    blocks = [state["spin"] for state in states if state.get("spin")]
    if not blocks:
        return None
    if len(blocks) < len(states):
        raise CounterError(f"only {len(blocks)} of {len(states)} ranks report a spin block")
    first, *others = (_rank_counters(block) for block in blocks)
    total = first
    for rank in others:
        if (rank.policy, rank.target_sparsity) != (first.policy, first.target_sparsity):
            raise CounterError("ranks run different SPIN settings")
        total = total.plus(rank)
    return total


def _rank_counters(block: dict[str, Any]) -> SpinCounters:
    try:
        return SpinCounters(
            policy=str(block["policy"]),
            target_sparsity=float(block["target_sparsity"]),
            steps=int(block["steps"]),
            rows_seeded=int(block["rows_seeded"]),
            rows_cold=int(block["rows_cold"]),
            blocks_seeded=int(block["blocks_seeded"]),
            blocks_cold=int(block["blocks_cold"]),
            kept_blocks=tuple(int(kept) for kept in block["kept_blocks"]),
            seen_blocks=tuple(int(seen) for seen in block["seen_blocks"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CounterError(f"the spin block of /server_info has no usable {error}") from None
