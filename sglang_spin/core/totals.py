"""Everything a rank has counted since it started, as one vector on the device and as plain numbers.

One vector, because a copy to the host costs the same whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sglang_spin.core.audit import BINS, TALLIES, quantile
from sglang_spin.core.counters import SCALARS

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_spin.core.step import SpinState


@dataclass(frozen=True, slots=True)
class LayerTotals:
    """One indexer layer. kept, seen: blocks over the steps of all rows; audits: by audit.TALLIES;
    histogram: audits by missed entries. The last two are empty in a state without audits."""

    kept: int
    seen: int
    audits: dict[str, int]
    histogram: tuple[int, ...]
    topk: int

    @property
    def kept_share(self) -> float:
        """Blocks scored, of those present; 1 before the first step."""
        return self.kept / self.seen if self.seen else 1.0

    @property
    def miss_mean(self) -> float | None:
        """Share of the audited top-k that the prediction would have skipped; None if unknown."""
        entries = self.audits.get("entries", 0)
        return self.audits["missed"] / entries if entries else None

    @property
    def miss_p99(self) -> float | None:
        """Miss that 99 of 100 audits do not exceed, to the next bin's edge; None if unknown."""
        return quantile(list(self.histogram), 0.99, self.topk) if any(self.histogram) else None

    @property
    def exploration_yield(self) -> float | None:
        """Of the blocks brought back after being skipped, the share that held a top-k entry."""
        returned = self.audits.get("returned", 0)
        return self.audits["useful"] / returned if returned else None


@dataclass(frozen=True, slots=True)
class Totals:
    """scalars: by counters.SCALARS. layers: by indexer layer."""

    scalars: dict[str, int]
    layers: tuple[LayerTotals, ...]

    @property
    def cold_share(self) -> float:
        """Blocks never scored, of those present."""
        seen = self.layers[0].seen
        return self.scalars["cold_blocks"] / seen if seen else 0.0

    @property
    def audits(self) -> int:
        """Audits of a layer; every layer has the same number."""
        return self.layers[0].audits.get("audits", 0)

    def since(self, earlier: Totals) -> Totals:
        """What has been added after `earlier`."""
        pairs = zip(self.layers, earlier.layers, strict=True)
        scalars = {name: n - earlier.scalars[name] for name, n in self.scalars.items()}
        return Totals(scalars, tuple(_minus(now, then) for now, then in pairs))


def pack(state: SpinState) -> Tensor:
    """All counters of a state: int64 on its device, in a new tensor."""
    counters, audit = state.counters, state.audit
    parts = [counters.scalars, counters.kept, counters.seen]
    if audit is not None:
        parts += [
            audit.tallies.sum(1).flatten(),
            audit.histogram.sum(1, dtype=torch.int64).flatten(),
        ]
    return torch.cat(parts)


def unpack(vector: Tensor, layers: int, topk: int) -> Totals:
    """pack()'s vector, on the host, as numbers."""
    values: list[int] = vector.tolist()
    scalars = dict(zip(SCALARS, values, strict=False))
    kept, seen, rest = _cut(values[len(SCALARS) :], layers, layers)
    tallies, histogram, _ = _cut(rest, layers * len(TALLIES), layers * BINS)
    return Totals(
        scalars,
        tuple(
            LayerTotals(
                kept=kept[i],
                seen=seen[i],
                audits=dict(zip(TALLIES, _part(tallies, i, len(TALLIES)), strict=False)),
                histogram=tuple(_part(histogram, i, BINS)),
                topk=topk,
            )
            for i in range(layers)
        ),
    )


def _part(values: list[int], index: int, size: int) -> list[int]:
    return values[index * size : (index + 1) * size]


def _cut(values: list[int], first: int, second: int) -> tuple[list[int], list[int], list[int]]:
    return values[:first], values[first : first + second], values[first + second :]


def _minus(now: LayerTotals, then: LayerTotals) -> LayerTotals:
    return LayerTotals(
        kept=now.kept - then.kept,
        seen=now.seen - then.seen,
        audits={name: n - then.audits[name] for name, n in now.audits.items()},
        histogram=tuple(a - b for a, b in zip(now.histogram, then.histogram, strict=True)),
        topk=now.topk,
    )
