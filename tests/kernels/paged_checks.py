"""The error budget of the paged scorer, and what else holds after every call."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.core.block_history import block_maxima
from tests.kernels.paged_scene import UNTOUCHED, Outputs, Scene

ROUNDING = 2.0**-24  # half a unit in the last place of fp32


def assert_within_budget(scene: Scene, width: int | None = None) -> Outputs:
    """The kernel errs at most twice as much as eager fp32 plus one rounding; the rest is untouched.

    Errors count against the sum of absolute terms, so that cancellation earns no excuse.
    """
    got, eager = scene.run("triton", maxima=True, width=width), scene.run("reference", width=width)
    exact, magnitude = scene.oracle()
    width = got.logits.shape[1]
    inside = scene.inside()[:, :width].numpy()
    exact, magnitude = exact[:, :width][inside], magnitude[:, :width][inside]
    off = np.abs(got.logits[:, : inside.shape[1]].double().numpy()[inside] - exact)
    eager_off = np.abs(eager.logits[:, : inside.shape[1]].double().numpy()[inside] - exact)
    relative = np.divide(eager_off, magnitude, out=np.zeros_like(exact), where=magnitude > 0)
    budget = 2 * (relative.max(initial=0) * magnitude + ROUNDING * np.abs(exact))
    assert (off <= budget).all()
    assert (got.logits[:, : inside.shape[1]][torch.from_numpy(~inside)] == UNTOUCHED).all()
    assert_maxima_agree(scene.lengths.clamp(max=width), got)
    return got


def assert_maxima_agree(lengths: Tensor, got: Outputs) -> None:
    """Block maxima are, bit for bit, those that core reads out of the same logits."""
    assert got.maxima is not None
    blocks = got.maxima.shape[1]
    logits = torch.nn.functional.pad(got.logits, (0, blocks * BLOCK - got.logits.shape[1]))
    if blocks == 0:
        return
    wanted = block_maxima(logits, blocks, lengths)
    begun = torch.arange(blocks) * BLOCK < lengths[:, None]
    wanted = torch.where(begun, wanted, UNTOUCHED)
    assert torch.equal(got.maxima.view(torch.int32), wanted.view(torch.int32))
