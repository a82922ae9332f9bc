"""Vector code for index scores: 32 heads in the lanes, 8 keys in the accumulators."""

# numba's intrinsic protocol passes a typing context that nothing here needs
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sglang_spin.cpu.kernels import vector as v

DIM = 128  # index head dimension
HEADS = 2 * v.LANES  # heads in one group
KEYS = 8  # keys in one register block: 8 x 2 accumulators


@intrinsic  # type: ignore[untyped-decorator]
def score_block(context: Any, q: Any, w: Any, keys: Any, out: Any, first: Any) -> Any:
    """out[i] += sum over 32 heads of w[h] * max(0, q[:, h] . keys[i]) for 8 keys.

    Addresses: q f32 [128, 32], w f32 [32], keys f32 [8, 128], out f32 [8]. `first` != 0 overwrites
    out instead of adding. Per key: dimensions in order, then the fixed lane tree over heads.
    """
    return types.void(*[types.intp] * 5), _score_block


def _score_block(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    q, w, keys, out, first = args
    dots = v.count_loop(
        b, v.i64(DIM), [v.ZERO] * (2 * KEYS), lambda dim, sums: _add_dim(b, q, keys, dim, sums)
    )
    fma, largest = v.math(b, "fma", 3), v.math(b, "maxnum", 2)
    gates = [v.load(b, v.offset(b, w, half, 4 * v.LANES), v.V16) for half in range(2)]
    fresh = b.icmp_signed("!=", first, v.i64(0))
    for i in range(KEYS):
        low, high = (b.call(largest, [dot, v.ZERO]) for dot in dots[2 * i : 2 * i + 2])
        both = b.call(fma, [high, gates[1], b.fmul(low, gates[0])])
        total = v.fold_lanes(b, both, b.fadd)
        target = v.offset(b, out, i, 4)
        before = b.select(fresh, ir.Constant(v.F32, 0.0), v.load(b, target, v.F32))
        v.store(b, b.fadd(before, total), target)
    return context.get_dummy_value()


def _add_dim(b: Any, q: Any, keys: Any, dim: Any, sums: list[Any]) -> list[Any]:
    """One dimension of all dot products; sums are [key][half of the heads]."""
    fma = v.math(b, "fma", 3)
    row = v.offset(b, q, dim, 4 * HEADS)
    halves = [v.load(b, v.offset(b, row, half, 4 * v.LANES), v.V16) for half in range(2)]
    column = v.offset(b, keys, dim, 4)
    result = []
    for i in range(KEYS):
        key = v.splat(b, v.load(b, v.offset(b, column, i, 4 * DIM), v.F32))
        result += [b.call(fma, [halves[half], key, sums[2 * i + half]]) for half in range(2)]
    return result
