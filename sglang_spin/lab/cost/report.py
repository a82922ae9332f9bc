"""An estimate as text and as a JSON-ready mapping. The only place where units are converted."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from sglang_spin.lab.cost import operators, published, traffic
from sglang_spin.lab.cost.assumptions import assumptions
from sglang_spin.lab.cost.estimate import PAPER, SCENARIOS, Part, Point, StepModel
from sglang_spin.lab.cost.operators import Observe
from sglang_spin.lab.cost.published import PublishedRun

SCHEMA = 1
LABEL = "MODEL, NOT A MEASUREMENT"
_WIDTH = 100


def text_report(step: StepModel, sparsities: Sequence[float]) -> str:
    """The whole report for a terminal."""
    points = step.points(sparsities)
    sections = [
        _head(step),
        _step_section(step),
        _spin_section(step, points),
        _table_section(step, points),
        _break_even_section(step),
        _assumption_section(step),
    ]
    return "\n\n".join(sections) + "\n"


def json_report(step: StepModel, sparsities: Sequence[float]) -> dict[str, Any]:
    """The same content; times in ms, bytes in bytes, shares in 0..1."""
    points = step.points(sparsities)
    load = step.load
    return {
        "schema": SCHEMA,
        "label": LABEL,
        "request": {
            "gpu": step.gpu.name, "model": step.model.name, "context": load.context,
            "batch": load.batch, "tp": load.tp, "index_format": load.index_format,
            "observe": step.observe,
        },
        "all_keep": {
            "itl_ms": step.base(step.blocks) * 1e3,
            "tokens_per_second": step.tokens_per_second(step.base(step.blocks)),
            "parts": [_part_json(part) for part in step.parts(step.blocks)],
        },
        "spin": {
            "at_sparsity": points[-1].sparsity,
            "parts": [_part_json(part) for part in _spin_parts(step, points[-1])],
            "state_bytes": {
                "paper": operators.slot_state_bytes(step.model, load),
                "ours": operators.block_state_bytes(step.model, load),
            },
        },
        "points": [_point_json(step, point) for point in points],
        "break_even_sparsity": {name: step.break_even(name) for name in SCENARIOS},
        "scenarios": dict(SCENARIOS),
        "memory_bytes_per_rank": traffic.memory(step.model, load),
        "assumptions": [entry._asdict() for entry in assumptions(step)],
    }  # fmt: skip


def moved_share(step: StepModel, kept: int) -> float:
    """Bytes our operators move over the bytes of scoring all blocks."""
    dense = traffic.scoring(step.model, step.load, step.blocks).moved
    return sum(part.work.moved for part in step.our_parts(kept)) / dense if dense else 0.0


def published_run(step: StepModel, sparsity: float) -> PublishedRun | None:
    """The published run with SPIN at that sparsity, if the request is the published point."""
    at = (published.GPU, published.MODEL, published.LOAD)
    if (step.gpu, step.model, step.load) != at:
        return None
    return {run.sparsity: run for run in published.RUNS[1:]}.get(sparsity)


def _spin_parts(step: StepModel, point: Point) -> list[Part]:
    return step.paper_parts() + step.our_parts(point.kept)


def _part_json(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "read_bytes": part.work.read,
        "written_bytes": part.work.written,
        "flops": part.work.flops,
        "launches": part.work.launches,
        "ms": part.seconds * 1e3,
        "basis": part.basis,
    }


def _point_json(step: StepModel, point: Point) -> dict[str, Any]:
    run = published_run(step, point.sparsity)
    return {
        "sparsity": point.sparsity,
        "kept_blocks": point.kept,
        "skipped_entries_share": point.skipped,
        "our_bytes_share_of_dense_scoring": moved_share(step, point.kept),
        "published": run and {"itl_ms": run.itl * 1e3, "tokens_per_second": run.tokens_per_second},
        "outcomes": {
            name: {
                "overhead_ms": outcome.overhead * 1e3,
                "itl_ms": outcome.itl * 1e3,
                "tokens_per_second": outcome.tokens_per_second,
                "speedup": outcome.speedup,
            }
            for name, outcome in point.outcomes.items()
        },
    }


def _head(step: StepModel) -> str:
    load = step.load
    need, has = traffic.memory(step.model, load) / 1e9, step.gpu.memory / 1e9
    return (
        f"{LABEL}\n{step.model.name} on {load.tp} x {step.gpu.name}, TP{load.tp}: "
        f"{load.batch} requests of {load.context:,} tokens, {load.index_format} index cache, "
        f"{step.blocks:,} blocks a row\nweights and caches: {need:.0f} of {has:.0f} GB a rank"
    )


def _parts_table(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"  {'':<24}{'GB read':>10}{'GB written':>12}{'TFLOP':>9}{'launches':>10}{'ms':>9}  set by"
    ]
    for part in parts:
        work = part.work
        moved = f"{work.read / 1e9:>10.3f}{work.written / 1e9:>12.3f}{work.flops / 1e12:>9.3f}"
        if part.basis in ("calibrated", "assumed"):
            moved = f"{'-':>10}{'-':>12}{'-':>9}"
        count = str(work.launches) if work.launches else "-"
        lines.append(f"  {part.name:<24}{moved}{count:>10}{part.seconds * 1e3:>9.3f}  {part.basis}")
    return lines


def _step_section(step: StepModel) -> str:
    dense = step.base(step.blocks)
    total = f"  {'all-keep ITL':<65}{dense * 1e3:>9.3f}  {step.tokens_per_second(dense):,.0f} tok/s"
    parts = _parts_table(step.parts(step.blocks))
    return "\n".join(["One decode step, all blocks kept, one rank", *parts, total])


def _spin_section(step: StepModel, points: Sequence[Point]) -> str:
    paper = operators.slot_state_bytes(step.model, step.load) / 1e9
    ours = operators.block_state_bytes(step.model, step.load) / 1e9
    shares = [_moved_shares(replace(step, observe=how), points) for how in get_args(Observe)]
    return "\n".join(
        [
            f"What SPIN adds to a step at sparsity {points[-1].sparsity:g}, one rank",
            *_parts_table(_spin_parts(step, points[-1])),
            "  bytes our operators move, over the bytes of scoring all blocks",
            *shares,
            f"  state held: paper {paper:.3f} GB, ours {ours:.3f} GB",
        ]
    )


def _moved_shares(step: StepModel, points: Sequence[Point]) -> str:
    shares = ", ".join(f"{moved_share(step, p.kept):.2%} at {p.sparsity:g}" for p in points)
    return f"    observe {step.observe:<9} {shares}"


def _table_section(step: StepModel, points: Sequence[Point]) -> str:
    lines = [
        "ITL ms, output tok/s, speed-up (all-keep ITL / ITL); in brackets the model's deviation"
    ]
    lines += [f"  {name:<8} {meaning}" for name, meaning in SCENARIOS.items()]
    heads = "".join(f" | {name:>7}{'tok/s':>7}{'speed-up':>10}" for name in SCENARIOS)
    lines.append(f"  {'sparsity':>8}{'kept':>7}{heads} | published")
    for point in points:
        cells = "".join(
            f" | {o.itl * 1e3:>7.2f}{o.tokens_per_second:>7,.0f}{o.speedup:>10.3f}"
            for o in point.outcomes.values()
        )
        check = _deviation(step, point)
        lines.append(f"  {point.sparsity:>8g}{point.kept:>7,}{cells} | {check}")
    return "\n".join(lines)


def _deviation(step: StepModel, point: Point) -> str:
    run, model = published_run(step, point.sparsity), point.outcomes[PAPER]
    if run is None:
        return "-"
    itl = f"{run.itl * 1e3:.2f} ms ({model.itl / run.itl - 1:+.2%})"
    flow = model.tokens_per_second / run.tokens_per_second - 1
    return f"{itl}, {run.tokens_per_second:,.0f} tok/s ({flow:+.2%})"


def _break_even_section(step: StepModel) -> str:
    lines = ["Break-even: least share of blocks to skip so that SPIN is not slower than all-keep"]
    for name in SCENARIOS:
        share = step.break_even(name)
        value = "never" if share is None else f"{share:.2%}"
        lines.append(f"  {name:<8}{value:>8}")
    return "\n".join(lines)


def _assumption_section(step: StepModel) -> str:
    lines = ["What this rests on"]
    for tag, text in assumptions(step):
        first = f"  [{tag}] "
        lines.append(textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=" " * 6))
    return "\n".join(lines)
