"""`cost`: its options, and what it returns for printing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sglang_spin.lab.cost import plot
from sglang_spin.lab.cost.estimate import StepModel
from sglang_spin.lab.cost.gpus import GPUS
from sglang_spin.lab.cost.models import MODELS
from sglang_spin.lab.cost.report import json_report, text_report
from sglang_spin.lab.cost.traffic import Load


class UsageError(Exception):
    """The request makes no sense; the message is one line for the user."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `cost`."""
    parser.add_argument("--gpu", type=_name, choices=list(GPUS), required=True)
    parser.add_argument("--model", type=_name, choices=list(MODELS), required=True)
    parser.add_argument("--context", type=_positive, required=True, help="tokens of each request")
    parser.add_argument("--batch", type=_positive, required=True, help="requests in decode")
    parser.add_argument("--tp", type=_positive, default=8, help="ranks (default 8)")
    parser.add_argument("--index-format", choices=["fp8", "fp4"], default="fp8")
    parser.add_argument(
        "--observe",
        choices=["separate", "fused"],
        default="separate",
        help="block maxima by a launch of their own, or inside the scorer",
    )
    parser.add_argument(
        "--sparsity",
        type=_sparsities,
        default=[0.0, 0.2, 0.4, 0.5],
        metavar="S,S,...",
        help="shares of blocks to skip (default 0,0.2,0.4,0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="ITL against sparsity")


def run(options: argparse.Namespace) -> str:
    """The report to print. Raises UsageError."""
    gpu, load = GPUS[options.gpu], _load(options)
    if not gpu.peak(load.index_format):
        able = ", ".join(name for name, other in GPUS.items() if other.peak(load.index_format))
        raise UsageError(
            f"--index-format {load.index_format}: {gpu.name} lacks it; it needs {able}"
        )
    step = StepModel(MODELS[options.model], gpu, load, options.observe)
    if options.plot:
        try:
            plot.draw(step, options.plot)
        except OSError as error:
            raise UsageError(f"--plot {options.plot}: {error.strerror}") from error
    if options.json:
        return json.dumps(json_report(step, options.sparsity), indent=2) + "\n"
    return text_report(step, options.sparsity)


def _load(options: argparse.Namespace) -> Load:
    return Load(options.context, options.batch, options.tp, options.index_format)


def _name(text: str) -> str:
    return text.lower()


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 0 < number < 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999,999,999")
    return number


def _sparsities(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share < 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 0,0.2,0.4 of shares below 1")
    return shares


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in plot.FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {', '.join(plot.FORMATS)}")
    return path
