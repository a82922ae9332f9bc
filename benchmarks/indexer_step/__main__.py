"""`python -m benchmarks.indexer_step`. Exit: 0 measured, 2 the request cannot be met."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.indexer_step import machine, report
from benchmarks.indexer_step.measure import MAX_REPEATS, measure
from benchmarks.indexer_step.options import (
    EXIT_USAGE,
    QUICK_SPARSITIES,
    REPEATS,
    SPARSITIES,
    parser,
    sizes,
)
from benchmarks.indexer_step.scene import Scene
from benchmarks.indexer_step.scorers import SCORERS, TOPKS, present
from benchmarks.indexer_step.sizes import Size, fewer_layers, fitting
from benchmarks.indexer_step.timing import Stopwatch, copy_bandwidth
from sglang_spin.lab.cost.models import MODELS


class UsageError(Exception):
    """The request cannot be met; the message is one line for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what was asked for."""
    options = parser().parse_args(arguments)
    try:
        run(options)
    except UsageError as error:
        print(f"python -m benchmarks.indexer_step: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def run(options: argparse.Namespace) -> None:
    """Raises UsageError."""
    device = _device(options)
    scorers, topk = _choices(options, device.type)
    sparsities = options.sparsities or (QUICK_SPARSITIES if options.quick else SPARSITIES)
    repeats = options.repeats or REPEATS[device.type]
    if repeats > MAX_REPEATS:
        raise UsageError(f"--repeats {repeats}: at most {MAX_REPEATS}")
    _check_writable([options.json, options.csv, options.plot])
    fit, skipped = _sizes(options, len(sparsities), device)
    results = _start(options, device, repeats, skipped)
    watch = Stopwatch(device)
    results.copy_bytes_per_s = copy_bandwidth(watch)
    print(report.text_head(results.machine, results.copy_bytes_per_s))
    print("".join(f"skipped {line}\n" for line in skipped), end="")
    for size in fit:
        scene = Scene(size, device)
        for scorer in scorers:
            some, summary = measure(
                scene,
                scorer,
                topk,
                sparsities=sparsities,
                observe=options.observe,
                repeats=repeats,
                model_layers=MODELS[options.model].indexer_layers,
                watch=watch,
                bytes_per_s=results.copy_bytes_per_s,
            )
            print(report.text_records(some) + report.text_summary(summary), flush=True)
            results.records += some
            results.summaries.append(summary)
        del scene  # before the next one is made
        _write(options, results)
    print(report.text_targets(results.targets), end="")


def _device(options: argparse.Namespace) -> torch.device:
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        raise UsageError("--device cuda: torch sees no CUDA device; use --device cpu")
    return torch.device(options.device or ("cuda" if there else "cpu"))


def _choices(options: argparse.Namespace, device: str) -> tuple[list[str], str]:
    scorers, topks = present(SCORERS[device]), present(TOPKS[device])
    for name in options.scorers or []:
        if name not in scorers:
            raise UsageError(f"--scorers {name}: on {device} there are {', '.join(scorers)}")
    if options.topk and options.topk not in topks:
        raise UsageError(f"--topk {options.topk}: on {device} there are {', '.join(topks)}")
    if not scorers:
        raise UsageError(f"no scorer on {device}: install triton or deep_gemm")
    if device == "cpu" and not options.quick:
        scorers = scorers[:1]  # plain torch takes several times as long
    return options.scorers or scorers, options.topk or topks[0]


def _sizes(
    options: argparse.Namespace, sparsities: int, device: torch.device
) -> tuple[list[Size], list[str]]:
    """Sizes that fit the memory, and a line for each that does not."""
    limit = machine.memory_limit(device)
    if options.memory_gb is not None:
        limit = min(limit, options.memory_gb * 1e9)
    asked = sizes(options, device.type)
    if device.type == "cuda" and not options.layers:
        asked = [fewer_layers(size, sparsities, limit) for size in asked]
    fit, refused = fitting(asked, sparsities, limit)
    skipped = [f"{size}: {reason}" for size, reason in refused]
    if not fit:
        raise UsageError(f"nothing fits: {skipped[0]}; choose fewer --layers or smaller sizes")
    return fit, skipped


def _start(
    options: argparse.Namespace, device: torch.device, repeats: int, skipped: list[str]
) -> report.Results:
    described = machine.describe(device)
    if device.type == "cpu" and machine.busy(described):
        print("warning: this machine is busy, so these times are doubtful", file=sys.stderr)
    settings = {"model": options.model, "repeats": repeats, "graphs": device.type == "cuda"}
    return report.Results(described, settings, 0.0, skipped)


def _check_writable(paths: Sequence[Path | None]) -> None:
    """Before minutes of measuring rather than after."""
    for path in filter(None, paths):
        try:
            path.open("a").close()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error


def _write(options: argparse.Namespace, results: report.Results) -> None:
    """After each size, so that a run cut short leaves what it has."""
    if options.json:
        options.json.write_text(results.as_json())
    if options.csv:
        report.write_csv(options.csv, results.records)
    if options.plot:
        place = results.machine.get("gpu", results.machine["cpu"])
        layers = " or ".join(str(n) for n in sorted({r.layers for r in results.records}))
        title = f"{options.model}, {layers} layers, {place}"
        report.draw(options.plot, results.records, title)


if __name__ == "__main__":
    sys.exit(main())
