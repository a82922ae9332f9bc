"""Figures as text, JSON, CSV and a picture."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.indexer_step.analysis import Record, Summary, Target, targets

SCHEMA = 1
COLUMNS = (
    "rows   context  sparsity  skipped |  dense ms   SPIN ms  ratio (quartiles)     |"
    "  own ms  own % | floor GB  own GB | reached: dense   SPIN  scorer"
)


def text_head(machine: dict[str, Any], bytes_per_s: float) -> str:
    """Machine, versions and the bandwidth that fractions are counted in."""
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    place = machine.get("gpu", f"{machine['cpu']}, {machine['torch_threads']} threads")
    return (
        f"{place}; load {machine['load_at_start']} on {machine['cores']} cores at the start\n"
        f"Python {machine['python']}, {versions}\n"
        f"copy bandwidth, read and written: {bytes_per_s / 1e9:.1f} GB/s\n"
    )


def text_records(records: Sequence[Record]) -> str:
    """One line per sparsity; the records are of one size and scorer."""
    first = records[0]
    lines = [
        f"scorer {first.scorer}, top-k {first.topk}, observe {first.observe}, {first.heads} heads,"
        f" {first.layers} layers, {first.blocks:,} pages a row",
        COLUMNS,
    ]
    lines += [
        f"{r.batch:4d} {r.context:9,d} {r.sparsity:9g} {r.skipped_share:8.1%} |"
        f" {r.dense_ms:9.3f} {r.spin_ms:9.3f}  {r.ratio:.3f} ({r.ratio_low:.3f} to"
        f" {r.ratio_high:.3f}) | {r.own_ms:7.3f} {r.own_percent:6.2f} |"
        f" {r.spin_bytes / 1e9:8.3f} {r.own_bytes / 1e9:7.4f} |"
        f" {r.dense_fraction:14.1%} {r.spin_fraction:6.1%} {r.scorer_fraction:7.1%}"
        for r in records
    ]
    for r in records:
        parts = ", ".join(f"{name} {ms:.3f}" for name, ms in r.parts_ms.items())
        lines.append(f"  parts at {r.sparsity:g}, ms, timed one by one: {parts}")
    return "\n".join(lines) + "\n"


def text_summary(summary: Summary) -> str:
    """Overhead, break-even, and the dense step scaled where not all layers were measured."""
    lines = []
    if summary.overhead_ms is not None:
        lines.append(
            f"overhead at sparsity 0: {summary.overhead_ms:+.3f} ms,"
            f" {summary.overhead_percent:+.2f} % of the dense step"
        )
    even = summary.break_even
    found = f"{even:.1%} of blocks skipped" if even is not None else "not within what was measured"
    lines.append(f"break-even: {found}")
    if summary.layers != summary.model_layers:
        factor = summary.model_layers / summary.layers
        lines.append(
            f"scaled, not measured: {summary.model_layers} layers would take"
            f" {summary.dense_ms * factor:.3f} ms dense (times {factor:g})"
        )
    return "\n".join(f"  {line}" for line in lines) + "\n"


def text_targets(promised: Sequence[Target]) -> str:
    """Which promises the measurement keeps; empty where their size was not measured."""
    words = {True: "met", False: "NOT MET"}
    lines = []
    for target in promised:
        sign = ">=" if target.at_least else "<="
        value = "-" if target.value is None else f"{target.value:.4g}"
        unknown = f"undecided, equal steps differ by {target.noise:.0%}"
        if target.value is None:
            unknown = "not measured"
        word = unknown if target.met is None else words[target.met]
        lines.append(
            f"target, scorer {target.scorer}, observe {target.observe}: {target.name}: {value}"
            f" (wanted {sign} {target.limit:g}): {word}"
        )
    return "".join(line + "\n" for line in lines)


@dataclass
class Results:
    """One run of the benchmark. docs/benchmarks.md names the fields of its JSON."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    copy_bytes_per_s: float
    skipped: list[str]
    records: list[Record] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)

    @property
    def targets(self) -> list[Target]:
        """The promises made for sizes that were measured."""
        return targets(self.machine["device"], self.records, self.summaries)

    def as_json(self) -> str:
        """Everything, as one document."""
        document = {"schema": SCHEMA, **dataclasses.asdict(self)}
        document["targets"] = [dataclasses.asdict(t) | {"met": t.met} for t in self.targets]
        return json.dumps(document, indent=1, allow_nan=False) + "\n"


def write_csv(path: Path, records: Sequence[Record]) -> None:
    """One line per record, without the samples; parts become columns. Raises OSError."""
    rows = []
    for r in records:
        row = dataclasses.asdict(r)
        del row["dense_samples_ms"], row["spin_samples_ms"]
        row |= {f"{name}_ms": ms for name, ms in row.pop("parts_ms").items()}
        rows.append(row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def draw(path: Path, records: Sequence[Record], title: str) -> None:
    """Ratio against skipped share, a panel per context, a line per batch. Raises OSError."""
    from matplotlib.figure import Figure  # half a second to import, and only this needs it

    contexts = sorted({r.context for r in records})
    figure = Figure(figsize=(1 + 3.4 * len(contexts), 4.2), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    for panel, context in zip(panels, contexts, strict=True):
        panel.axhline(1.0, color="#4c566a", linestyle="--", linewidth=1)
        here = [r for r in records if r.context == context]
        for scorer, batch in dict.fromkeys((r.scorer, r.batch) for r in here):
            line = [r for r in here if (r.scorer, r.batch) == (scorer, batch)]
            share, ratio = [r.skipped_share for r in line], [r.ratio for r in line]
            panel.plot(share, ratio, marker="o", label=f"{batch} rows, {scorer}")
        panel.set(title=f"{context:,} tokens", xlabel="share of blocks skipped")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("SPIN step / dense step")
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)
