"""Building blocks for numba intrinsics in 16-lane vector code.

numba's loop vectoriser keeps accumulators in memory and stops at 64-bit promotions; the few inner
loops that matter are written in LLVM IR instead. Every lane does the same operations in the same
order, so a result depends on nothing but its own operands: not on the position in a tile, the
number of rows, or how the work was split. LLVM lowers the vectors to what the machine has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

F32 = ir.FloatType()
I32 = ir.IntType(32)
I64 = ir.IntType(64)
V16 = ir.VectorType(F32, LANES)
V16I = ir.VectorType(I32, LANES)
ZERO = ir.Constant(V16, [0.0] * LANES)


def i64(value: int) -> Any:
    """A 64-bit constant."""
    return ir.Constant(I64, value)


def floats(value: float) -> Any:
    """A vector of one float."""
    return ir.Constant(V16, [value] * LANES)


def ints(value: int) -> Any:
    """A vector of one 32-bit integer."""
    return ir.Constant(V16I, [value] * LANES)


def offset(b: Any, address: Any, count: Any, size: int) -> Any:
    """address + count * size, in bytes; count is an int or an I64 value."""
    count = i64(count) if isinstance(count, int) else count
    return b.add(address, b.mul(count, i64(size)))


def load(b: Any, address: Any, kind: Any, align: int = 4) -> Any:
    """Load a value of `kind` from an address."""
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def store(b: Any, value: Any, address: Any, align: int = 4) -> None:
    """Store a value at an address."""
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = align


def splat(b: Any, scalar: Any) -> Any:
    """A vector of one scalar."""
    undefined = ir.Constant(V16, ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(V16I, [0] * LANES))


def shuffle(b: Any, vector: Any, lanes: list[int]) -> Any:
    """The vector of the given lanes."""
    undefined = ir.Constant(vector.type, ir.Undefined)
    return b.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def fold_lanes(b: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the 16 lanes in a fixed tree: halves, quarters, pairs. `combine` takes vectors."""
    width = LANES
    while width > 1:
        width //= 2
        swapped = [i ^ width for i in range(LANES)]
        vector = combine(vector, shuffle(b, vector, swapped))
    return b.extract_element(vector, ir.Constant(I32, 0))


def math(b: Any, name: str, arity: int) -> Any:
    """LLVM's vector intrinsic of that name: fma, minnum, maxnum."""
    kind = ir.FunctionType(V16, [V16] * arity)
    return cgutils.get_or_insert_function(b.module, kind, f"llvm.{name}.v16f32")


def count_loop(
    b: Any, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """for i in range(count): values = body(i, values). count >= 1. Returns the last values."""
    entry, loop = b.block, b.append_basic_block("loop")
    done = b.append_basic_block("loop_done")
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(I64)
    index.add_incoming(i64(0), entry)
    values = [b.phi(value.type) for value in initial]
    results = body(index, list(values))
    following = b.add(index, i64(1))
    index.add_incoming(following, b.block)
    for value, first, result in zip(values, initial, results, strict=True):
        value.add_incoming(first, entry)
        value.add_incoming(result, b.block)
    b.cbranch(b.icmp_signed("<", following, count), loop, done)
    b.position_at_end(done)
    return results


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(context: Any, value: Any) -> Any:  # noqa: ARG001  numba's protocol
    """The uint32 with the bits of a float32."""
    return types.uint32(types.float32), _cast(I32)


@intrinsic  # type: ignore[untyped-decorator]
def float_of(context: Any, bits: Any) -> Any:  # noqa: ARG001  numba's protocol
    """The float32 with the bits of a uint32."""
    return types.float32(types.uint32), _cast(F32)


def _cast(kind: Any) -> Any:
    return lambda _context, b, _sig, args: b.bitcast(args[0], kind)
