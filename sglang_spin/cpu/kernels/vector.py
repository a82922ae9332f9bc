"""Numba intrinsics: 512-bit vector code that numba's loop vectoriser does not produce.

Every lane does the same operations in the same order, so a result depends on nothing but its own
operands: not on the position in the tile, the number of rows, or how the work was split.
LLVM lowers the vectors to whatever the machine has; AVX-512 takes them as they are.
"""

# numba's intrinsic protocol passes a typing context that nothing here needs
# ruff: noqa: ARG001
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

DIM = 128  # index head dimension
HEADS = 32  # heads in one group: two vectors of 16 lanes
KEYS = 8  # keys in one register block: 8 x 2 accumulators

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_V16 = ir.VectorType(_F32, 16)
_ZERO = ir.Constant(_V16, [0.0] * 16)
_VOID5 = types.void(types.intp, types.intp, types.intp, types.intp, types.intp)


def _load(b: Any, address: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def _offset(b: Any, address: Any, count: Any, size: int) -> Any:
    return b.add(address, b.mul(count, ir.Constant(_I64, size)))


def _splat(b: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_V16, ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, 16), [0] * 16))


def _sum_lanes(b: Any, vector: Any) -> Any:
    """Add the 16 lanes in a fixed tree: halves, quarters, pairs."""
    width = 16
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        kind = ir.VectorType(_I32, width)
        low = b.shuffle_vector(vector, undefined, ir.Constant(kind, list(range(width))))
        high = b.shuffle_vector(vector, undefined, ir.Constant(kind, list(range(width, 2 * width))))
        vector = b.fadd(low, high)
    return b.extract_element(vector, ir.Constant(_I32, 0))


def _math(b: Any, name: str, arity: int) -> Any:
    kind = ir.FunctionType(_V16, [_V16] * arity)
    return cgutils.get_or_insert_function(b.module, kind, f"llvm.{name}.v16f32")


@intrinsic  # type: ignore[untyped-decorator]
def score_block(context: Any, q: Any, w: Any, keys: Any, out: Any, first: Any) -> Any:
    """out[i] += sum over 32 heads of w[h] * max(0, q[:, h] . keys[i]) for 8 keys.

    Addresses: q f32 [128, 32], w f32 [32], keys f32 [8, 128], out f32 [8]. `first` != 0 overwrites
    out instead of adding. Per key: dimensions in order, then the fixed lane tree over heads.
    """
    return _VOID5, _score_block


def _score_block(_context: Any, b: Any, _sig: Any, args: Any) -> Any:
    q, w, keys, out, first = args
    dots = _dot_products(b, q, keys)
    fma, largest = _math(b, "fma", 3), _math(b, "maxnum", 2)
    gates = [_load(b, _offset(b, w, ir.Constant(_I64, half), 64), _V16) for half in range(2)]
    fresh = b.icmp_signed("!=", first, ir.Constant(_I64, 0))
    for i in range(KEYS):
        low, high = (b.call(largest, [dot, _ZERO]) for dot in dots[2 * i : 2 * i + 2])
        total = _sum_lanes(b, b.call(fma, [high, gates[1], b.fmul(low, gates[0])]))
        target = b.inttoptr(
            _offset(b, out, ir.Constant(_I64, i), 4), _F32.as_pointer()
        )
        before = b.select(fresh, ir.Constant(_F32, 0.0), b.load(target))
        b.store(b.fadd(before, total), target)
    return _context.get_dummy_value()


def _dot_products(b: Any, q: Any, keys: Any) -> list[Any]:
    """16 accumulators [key][half of the heads], looping over the dimensions."""
    fma = _math(b, "fma", 3)
    entry = b.block
    loop = b.append_basic_block("dims")
    done = b.append_basic_block("dims_done")
    b.branch(loop)
    b.position_at_end(loop)
    dim = b.phi(_I64)
    dim.add_incoming(ir.Constant(_I64, 0), entry)
    sums = [b.phi(_V16) for _ in range(2 * KEYS)]
    row = _offset(b, q, dim, 4 * HEADS)
    halves = [_load(b, _offset(b, row, ir.Constant(_I64, half), 64), _V16) for half in range(2)]
    column = _offset(b, keys, dim, 4)
    nexts = []
    for i in range(KEYS):
        scalar = _load(b, _offset(b, column, ir.Constant(_I64, i), 4 * DIM), _F32)
        key = _splat(b, scalar)
        nexts += [b.call(fma, [halves[half], key, sums[2 * i + half]]) for half in range(2)]
    following = b.add(dim, ir.Constant(_I64, 1))
    dim.add_incoming(following, loop)
    for total, after in zip(sums, nexts, strict=True):
        total.add_incoming(_ZERO, entry)
        total.add_incoming(after, loop)
    b.cbranch(b.icmp_signed("<", following, ir.Constant(_I64, DIM)), loop, done)
    b.position_at_end(done)
    return nexts


@intrinsic  # type: ignore[untyped-decorator]
def decode_fp8(context: Any, source: Any, target: Any) -> Any:
    """Write 16 float8_e4m3fn values at address `source` as f32 * 2**-8 at address `target`.

    Exact, subnormals included: the eight bits become a half with the same digits, whose exponent
    bias is 8 larger. The caller owes the factor 256. NaN codes (0x7f, 0xff) are read as +-480.
    """
    return types.void(types.intp, types.intp), _decode_fp8


def _decode_fp8(_context: Any, b: Any, _sig: Any, args: Any) -> Any:
    source, target = args
    narrow, wide = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.IntType(16), 16)
    raw = b.load(b.inttoptr(source, narrow.as_pointer()))
    raw.align = 1
    shifted = b.shl(b.sext(raw, wide), ir.Constant(wide, [7] * 16))
    bits = b.and_(shifted, ir.Constant(wide, [0xBF80 - 0x10000] * 16))
    values = b.fpext(b.bitcast(bits, ir.VectorType(ir.HalfType(), 16)), _V16)
    b.store(values, b.inttoptr(target, _V16.as_pointer())).align = 4
    return _context.get_dummy_value()
