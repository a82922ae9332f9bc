"""Vector code for latent attention: 4 heads at a time against bf16 cache rows."""

# numba's intrinsic protocol passes a typing context that nothing here needs
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sglang_spin.cpu.kernels import vector as v

HEADS = 4
STEP = 2 * v.LANES  # dimensions one turn of dot_heads takes
WIDTH = 4 * v.LANES  # dimensions one call of mix_rows produces

_BF16 = ir.VectorType(ir.IntType(16), v.LANES)


def _bf16(b: Any, address: Any) -> Any:
    """16 bf16 values as fp32: bf16 is its upper half."""
    raw = b.zext(v.load(b, address, _BF16, align=2), v.V16I)
    return b.bitcast(b.shl(raw, v.ints(16)), v.V16)


@intrinsic  # type: ignore[untyped-decorator]
def dot_heads(
    context: Any, q: Any, q_stride: Any, row: Any, steps: Any, out: Any, out_stride: Any
) -> Any:
    """out[h * out_stride] += q[h] . row for 4 heads; rows of 32 * steps dimensions.

    Addresses: q f32, heads q_stride bytes apart; row bf16; out f32, out_stride in bytes.
    """
    return types.void(*[types.intp] * 6), _dot_heads


def _dot_heads(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    q, q_stride, row, steps, out, out_stride = args
    fma = v.math(b, "fma", 3)

    def body(step: Any, sums: list[Any]) -> list[Any]:
        result = []
        for half in range(2):
            at = b.add(b.mul(step, v.i64(STEP)), v.i64(half * v.LANES))
            key = _bf16(b, v.offset(b, row, at, 2))
            for h in range(HEADS):
                head = b.add(q, b.mul(q_stride, v.i64(h)))
                query = v.load(b, v.offset(b, head, at, 4), v.V16)
                result.append(b.call(fma, [query, key, sums[half * HEADS + h]]))
        return result

    sums = v.count_loop(b, steps, [v.ZERO] * (2 * HEADS), body)
    for h in range(HEADS):
        total = v.fold_lanes(b, b.fadd(sums[h], sums[HEADS + h]), b.fadd)
        target = b.add(out, b.mul(out_stride, v.i64(h)))
        v.store(b, b.fadd(v.load(b, target, v.F32), total), target)
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def mix_rows(
    context: Any,
    p: Any,
    p_stride: Any,
    rows: Any,
    count: Any,
    shift: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """out[h, :64] = sum over i < count of p[h, i] * row i, for 4 heads; count >= 1, rows in order.

    Addresses: p f32, heads p_stride bytes apart; rows int64 [count] of bf16 row addresses, `shift`
    bytes into which the 64 dimensions start; out f32, heads out_stride bytes apart.
    """
    return types.void(*[types.intp] * 7), _mix_rows


def _mix_rows(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    p, p_stride, rows, count, shift, out, out_stride = args
    fma = v.math(b, "fma", 3)
    parts = WIDTH // v.LANES

    def body(i: Any, sums: list[Any]) -> list[Any]:
        row = b.add(v.load(b, v.offset(b, rows, i, 8), v.I64, align=8), shift)
        values = [_bf16(b, v.offset(b, row, part, 2 * v.LANES)) for part in range(parts)]
        result = []
        for h in range(HEADS):
            head = b.add(p, b.mul(p_stride, v.i64(h)))
            weight = v.splat(b, v.load(b, v.offset(b, head, i, 4), v.F32))
            result += [
                b.call(fma, [weight, values[part], sums[h * parts + part]]) for part in range(parts)
            ]
        return result

    sums = v.count_loop(b, count, [v.ZERO] * (HEADS * parts), body)
    for h in range(HEADS):
        head = b.add(out, b.mul(out_stride, v.i64(h)))
        for part in range(parts):
            v.store(b, sums[h * parts + part], v.offset(b, head, part, 4 * v.LANES))
    return context.get_dummy_value()
