"""Whether the device has room for the state, asked before it is allocated."""

from __future__ import annotations

from sglang_spin.core.step import Shape
from sglang_spin.engine.fatal import die

STATE_BYTES = 12  # per layer, row and block, of every policy but spin-paper
STASH_BYTES = 4  # more for each verify row beyond the first
WORKSPACE_BYTES = 9  # of which 1 for audits


def require_memory(shape: Shape) -> None:
    """End the process if the state cannot fit; it grows with request rows times context length."""
    import torch

    if not torch.cuda.is_available():
        return
    blocks = shape.layers * shape.rows * shape.blocks
    each = STATE_BYTES + STASH_BYTES * (shape.verify_rows - 1) + WORKSPACE_BYTES
    needed, free = blocks * each, torch.cuda.mem_get_info()[0]
    if needed > free:
        die(
            f"the state of {shape.rows} request rows needs {needed / 1e9:.1f} GB and the GPU has "
            f"{free / 1e9:.1f} GB left; lower --max-running-requests or --mem-fraction-static"
        )
