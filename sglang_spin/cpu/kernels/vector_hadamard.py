"""Vector code for the 128-point Walsh-Hadamard transform, all butterflies in registers."""

# numba's intrinsic protocol passes a typing context that nothing here needs
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sglang_spin.cpu.kernels import vector as v

POINTS = 128


@intrinsic  # type: ignore[untyped-decorator]
def hadamard_row(context: Any, source: Any, target: Any, scale: Any) -> Any:
    """target f32 [128] = scale * H source, in Sylvester order; source f32 [128]; both addresses."""
    return types.void(types.intp, types.intp, types.float32), _hadamard_row


def _hadamard_row(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    source, target, scale = args
    count = POINTS // v.LANES
    rows = [v.load(b, v.offset(b, source, i, 4 * v.LANES), v.V16) for i in range(count)]
    fma = v.math(b, "fma", 3)
    half = 1
    while half < v.LANES:
        # x + y in the lower lane of a pair, x - y in the upper: the partner plus or minus oneself
        signs = ir.Constant(v.V16, [-1.0 if lane & half else 1.0 for lane in range(v.LANES)])
        swap = [lane ^ half for lane in range(v.LANES)]
        rows = [b.call(fma, [row, signs, v.shuffle(b, row, swap)]) for row in rows]
        half *= 2
    half = 1
    while half < count:
        rows = [
            b.fsub(rows[i ^ half], rows[i]) if i & half else b.fadd(rows[i], rows[i ^ half])
            for i in range(count)
        ]
        half *= 2
    for i, row in enumerate(rows):
        v.store(b, b.fmul(row, v.splat(b, scale)), v.offset(b, target, i, 4 * v.LANES))
    return context.get_dummy_value()
