"""`python -m tests.kernels.guarded honest|lying`: score with every input against a forbidden page.

A read past the end of any input ends this process by a signal. `lying` gives the operator a table
that claims one block more than its memory holds, to show that the guard bites.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from dataclasses import replace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from sglang_spin.core.block import BLOCK
from sglang_spin.kernels.paged_logits.layout import FP4, FP8
from tests.kernels.paged_scene import Scene, make_scene


def before_forbidden_page(tensor: Tensor) -> Tensor:
    """A copy whose last byte is the last one that may be read."""
    size = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    region = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0):  # PROT_NONE
        raise OSError(ctypes.get_errno(), "mprotect refused the guard page")
    bytes_ = torch.frombuffer(region, dtype=torch.uint8)[size - tensor.nbytes : size]
    copy = bytes_.view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy


def guarded(scene: Scene) -> Scene:
    fields = {name: t for name, t in vars(scene).items() if isinstance(t, Tensor)}
    return replace(scene, **{name: before_forbidden_page(t) for name, t in fields.items()})


def main(lying: bool) -> None:
    for page in (FP8, FP4):
        scene = guarded(make_scene(page, [190, 0, 64, 129], heads=16, spare_blocks=0))
        # the page at the end of the pool is in use: its last scale touches the forbidden page
        assert (scene.page_table == scene.cache.shape[0] - 1).any()
        if lying:
            table = scene.page_table[-1:]
            scene = replace(
                scene,
                q=scene.q[-1:],
                weights=scene.weights[-1:],
                lengths=torch.tensor([4 * BLOCK], dtype=torch.int32),
                page_table=table.as_strided((1, table.shape[1] + 1), table.stride()),
            )
        scene.run("triton", maxima=True)
        # lengths that no table holds end at the tables
        scene.page_table.clamp_(max=scene.cache.shape[0] - 1)
        replace(scene, lengths=scene.lengths * 100).run("triton", maxima=True)


if __name__ == "__main__":
    main(sys.argv[1] == "lying")
