"""The command line, and the sizes it asks for."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks.indexer_step.measure import MAX_REPEATS
from benchmarks.indexer_step.sizes import Size
from sglang_spin.kernels.paged_logits.operands import HEADS
from sglang_spin.lab.cost.models import MODELS

EXIT_USAGE = 2
PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = {"K": 1_000, "M": 1_000_000}
BATCHES, SPARSITIES = [1, 8, 32, 96], [0.0, 0.2, 0.4, 0.5]
CONTEXTS = [32_000, 128_000, 507_000, 1_000_000]
# what --quick replaces: the sizes that targets are stated for, batch and tokens
QUICK_SIZE = {"cpu": (8, 512_000), "cuda": (96, 507_000)}
QUICK_SPARSITIES = [0.0, 0.4]
LAYERS_ON_CPU = 2  # more cost memory and minutes, and change no ratio
REPEATS = {"cpu": 9, "cuda": 30}


class Parser(argparse.ArgumentParser):
    """argparse, with its errors on one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (--help lists the options)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parser() -> Parser:
    """Options of `python -m benchmarks.indexer_step`; those left None depend on the device."""
    about = "time the indexer's part of a decode step, dense and with SPIN"
    made = Parser(prog="python -m benchmarks.indexer_step", description=about)
    add = made.add_argument
    add("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    add("--quick", action="store_true", help="only the size and sparsities of the targets")
    add("--model", choices=list(MODELS), default="deepseek-v4-flash", metavar="NAME")
    add("--batches", type=_list(_positive), metavar="N,N,...", help="rows in decode")
    add("--contexts", type=_list(tokens), metavar="N,N,...", help="tokens a row: 507K is 507,000")
    add("--sparsities", type=_list(_sparsity), metavar="S,S,...", help="shares of blocks to skip")
    add("--layers", type=_positive, help="indexer layers (CPU: 2; CUDA: as many as fit)")
    add("--heads", type=int, choices=HEADS, help="index heads (default: the model's)")
    add(
        "--scorers",
        type=_list(str),
        metavar="NAME,...",
        help="default: those that exist here; on a CPU only --quick takes all",
    )
    add("--topk", metavar="NAME", help="default: the first that exists here")
    add(
        "--observe",
        choices=["separate", "fused"],
        default="separate",
        help="block maxima by a launch of their own, or by the scorer where it can",
    )
    add("--repeats", type=_positive, help=f"of every arm, at most {MAX_REPEATS}")
    add("--memory-gb", type=float, help="what a size may hold (default: what is free)")
    add("--json", type=Path, metavar="FILE")
    add("--csv", type=Path, metavar="FILE")
    add("--plot", type=_picture, metavar="FILE", help="ratio against skipped share")
    return made


def check_options(program: str, arguments: list[str] | None) -> argparse.Namespace:
    """device, tiny and out of a check of values. Ends the process without the device."""
    made = Parser(prog=program)
    made.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    made.add_argument("--tiny", action="store_true", help="sizes for Triton's interpreter")
    made.add_argument("--out", type=Path, metavar="FILE")
    options = made.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        made.error("--device cuda: torch sees no CUDA device")
    if options.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        made.error("--device cpu: set TRITON_INTERPRET=1")
    return options


def sizes(options: argparse.Namespace, device: str) -> list[Size]:
    """The asked batches and contexts, smallest contexts first."""
    model = MODELS[options.model]
    changes: dict[str, Any] = {}
    if options.heads:
        changes["index_heads"] = options.heads
    layers = options.layers or (LAYERS_ON_CPU if device == "cpu" else None)
    if layers:
        changes["indexer_layers"] = layers
    batch, context = QUICK_SIZE[device]
    batches = options.batches or ([batch] if options.quick else BATCHES)
    contexts = options.contexts or ([context] if options.quick else CONTEXTS)
    shape = dataclasses.replace(model, **changes)
    return [Size(shape, b, c) for c in sorted(contexts) for b in sorted(batches)]


def tokens(text: str) -> int:
    """A number of tokens: 4096, 507K (507,000) or 1M (1,000,000)."""
    factor = SUFFIXES.get(text[-1:].upper(), 1)
    return _positive(text[:-1] if factor > 1 else text) * factor


def _list(one: Any) -> Any:
    def parse(text: str) -> list[Any]:
        return list(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _sparsity(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in 0 <= s < 1")
    return value


def _picture(text: str) -> Path:
    if Path(text).suffix not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(PICTURES)}")
    return Path(text)
