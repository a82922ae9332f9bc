"""Vector code for float8_e4m3fn: decode, block maximum, encode."""

# numba's intrinsic protocol passes a typing context that nothing here needs
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sglang_spin.cpu.kernels import vector as v

FP8_MAX = 448.0

_BYTES = ir.VectorType(ir.IntType(8), v.LANES)
_HALVES = ir.VectorType(ir.IntType(16), v.LANES)


@intrinsic  # type: ignore[untyped-decorator]
def decode_fp8(context: Any, source: Any, target: Any) -> Any:
    """Write 16 float8_e4m3fn values at address `source` as f32 * 2**-8 at address `target`.

    Exact, subnormals included: the eight bits become a half with the same digits, whose exponent
    bias is 8 larger. The caller owes the factor 256. NaN codes (0x7f, 0xff) are read as +-480.
    """
    return types.void(types.intp, types.intp), _decode_fp8


def _decode_fp8(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    source, target = args
    raw = b.sext(v.load(b, source, _BYTES, align=1), _HALVES)
    shifted = b.shl(raw, ir.Constant(_HALVES, [7] * v.LANES))
    bits = b.and_(shifted, ir.Constant(_HALVES, [0xBF80 - 0x10000] * v.LANES))
    halves = b.bitcast(bits, ir.VectorType(ir.HalfType(), v.LANES))
    v.store(b, b.fpext(halves, v.V16), target)
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def largest_magnitude(context: Any, source: Any, vectors: Any) -> Any:
    """The largest |x| of 16 * vectors floats at address `source`; vectors >= 1."""
    return types.float32(types.intp, types.intp), _largest_magnitude


def _largest_magnitude(_context: Any, b: Any, _sig: Any, args: Any) -> Any:
    source, vectors = args
    largest = v.math(b, "maxnum", 2)

    def body(i: Any, values: list[Any]) -> list[Any]:
        bits = v.load(b, v.offset(b, source, i, 4 * v.LANES), v.V16I)
        size = b.bitcast(b.and_(bits, v.ints(0x7FFFFFFF)), v.V16)
        return [b.call(largest, [values[0], size])]

    (found,) = v.count_loop(b, vectors, [v.ZERO], body)
    return v.fold_lanes(b, found, lambda x, y: b.call(largest, [x, y]))


@intrinsic  # type: ignore[untyped-decorator]
def encode_fp8(context: Any, source: Any, target: Any, scale: Any) -> Any:
    """Write 16 floats at `source`, divided by scale, to `target` as float8_e4m3fn bytes.

    Rounds to nearest, ties to even; saturates at +-448.
    """
    return types.void(types.intp, types.intp, types.float32), _encode_fp8


def _encode_fp8(context: Any, b: Any, _sig: Any, args: Any) -> Any:
    source, target, scale = args
    value = b.fdiv(v.load(b, source, v.V16), v.splat(b, scale))
    least, largest = v.math(b, "minnum", 2), v.math(b, "maxnum", 2)
    value = b.call(largest, [b.call(least, [value, v.floats(FP8_MAX)]), v.floats(-FP8_MAX)])
    bits = b.bitcast(value, v.V16I)
    sign = b.and_(b.lshr(bits, v.ints(24)), v.ints(0x80))
    size = b.and_(bits, v.ints(0x7FFFFFFF))
    # normal: drop 20 of 23 mantissa bits, rounding; then move the exponent bias from 127 to 7
    odd = b.and_(b.lshr(size, v.ints(20)), v.ints(1))
    kept = b.lshr(b.add(b.add(size, v.ints((1 << 19) - 1)), odd), v.ints(20))
    normal = b.sub(kept, v.ints((127 - 7) << 3))
    # subnormal: adding 2**14 leaves the multiples of 2**-9 in the low mantissa bits, rounded
    shifted = b.fadd(b.bitcast(size, v.V16), v.floats(2.0**14))
    subnormal = b.sub(b.bitcast(shifted, v.V16I), v.ints((127 + 14) << 23))
    tiny = b.icmp_unsigned("<", size, v.ints((127 - 6) << 23))
    code = b.or_(sign, b.select(tiny, subnormal, normal))
    v.store(b, b.trunc(code, _BYTES), target, align=1)
    return context.get_dummy_value()
