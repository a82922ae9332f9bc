"""What the paged scorer refuses at its border, and that it reads nothing beyond its inputs."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_spin.kernels.paged_logits import paged_logits
from sglang_spin.kernels.paged_logits.layout import FP4, FP8
from tests.kernels.paged_scene import UNTOUCHED, make_scene

ROOT = Path(__file__).parents[2]


def score_guarded(table: str) -> int:
    command = [sys.executable, "-m", "tests.kernels.guarded", table]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode


def test_no_input_is_read_past_its_end() -> None:
    """Tables, lengths, queries, weights and pages may each end at a forbidden page."""
    assert score_guarded("honest") == 0


def test_the_guard_bites() -> None:
    """A table that claims a block it does not have ends the process, so the guard is real."""
    assert score_guarded("lying") == -signal.SIGSEGV


WRONG = {
    "q": (lambda s: {"q": s.q.float()}, r"q must be torch.float8_e4m3fn \[rows, heads, 128\]"),
    "q of 64": (lambda s: {"q": s.q[:, :, :64].contiguous()}, r"q must .* got .*\[2, 16, 64\]"),
    "q strided": (lambda s: {"q": s.q.transpose(0, 1).contiguous().transpose(0, 1)}, "q must be c"),
    "weights": (lambda s: {"weights": s.weights.bfloat16()}, r"weights must be torch.float32 \[2"),
    "weights, 3d": (lambda s: {"weights": s.weights[:, :, None]}, r"got torch.float32 \[2, 16, 1"),
    "lengths": (lambda s: {"lengths": s.lengths.long()}, r"lengths must be torch.int32 \[2\]"),
    "lengths, 2d": (lambda s: {"lengths": s.lengths[:, None]}, r"lengths must .* got .*\[2, 1\]"),
    "cache, 4d": (lambda s: {"cache": s.cache.view(-1, 64, 1, 132)}, r"cache must be .* 8448\]"),
    "fp4 cache": (
        lambda s: {"cache": s.cache[:, : FP4.page_bytes]},
        r"cache must be torch.uint8 \[pages, 8448\] for fp8 pages, got torch.uint8 \[6, 4352\]",
    ),
    "unaligned": (
        lambda s: {"cache": torch.nn.functional.pad(s.cache, (0, 8))[:, :-8]},
        r"start at multiples of 16 bytes, got strides \(8456, 1\)",
    ),
    "table": (lambda s: {"page_table": s.page_table.long()}, "page_table must be torch.int32"),
    "table rows": (lambda s: {"page_table": s.page_table.repeat(2, 1)}, r"row of q \(2\).* got 4"),
    "strided table": (
        lambda s: {"page_table": s.page_table.t().contiguous().t()},
        "page_table must .* with stride 1",
    ),
}


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_operands_are_refused(what: str, impl: str) -> None:
    """Each wrong operand is named, with what was expected and what came."""
    change, message = WRONG[what]
    scene = make_scene(FP8, [100, 129], heads=16)
    with pytest.raises(ValueError, match=message):
        replace(scene, **change(scene)).run(impl)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("out", (1, 256), r"logits must be torch.float32 \[2, >= 0\].* got .*\[1, 256\]"),
        ("maxima", (2, 1), r"maxima must be torch.float32 \[2, >= 4\].* got .*\[2, 1\]"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, ...], message: str
) -> None:
    """An output with too few rows or columns is refused before anything is written."""
    scene = make_scene(FP8, [100, 129], heads=16)
    outputs: dict[str, Any] = {name: torch.full(shape, UNTOUCHED)}
    with pytest.raises(ValueError, match=message):
        paged_logits(
            scene.q, scene.cache, scene.weights, scene.lengths, scene.page_table, **outputs
        )
    assert (outputs[name] == UNTOUCHED).all()


def test_an_implementation_that_does_not_exist_is_refused() -> None:
    """An explicit choice never falls back to another."""
    with pytest.raises(ValueError, match="impl must be 'triton', 'reference' or None"):
        make_scene(FP8, [1], heads=16).run("cuda")


def test_on_a_cpu_the_reference_is_the_default() -> None:
    """Without a choice, CPU tensors go to the torch reference, bit for bit."""
    scene = make_scene(FP8, [100], heads=16, spare_blocks=0)
    args = (scene.q, scene.cache, scene.weights, scene.lengths, scene.page_table)
    inside = scene.inside()
    assert torch.equal(paged_logits(*args)[inside], scene.run("reference").logits[inside])
