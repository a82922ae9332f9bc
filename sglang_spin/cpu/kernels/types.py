"""Array types for the kernels' explicit signatures.

With signatures numba compiles, or loads from its cache, when a module is imported: a server that
reports ready has nothing left to compile. `F32_2` is contiguous, `F32_2S` may have any strides.
"""

from __future__ import annotations

from numba.types import boolean, float32, int32, int64, uint8, uint16, void

BOOL, F32, I64, VOID = boolean, float32, int64, void
F32_1, F32_2, F32_3, F32_4 = (
    float32[::1],
    float32[:, ::1],
    float32[:, :, ::1],
    float32[:, :, :, ::1],
)
F32_2S, F32_3S = float32[:, :], float32[:, :, :]
I32_1, I32_2, I64_1 = int32[::1], int32[:, ::1], int64[::1]
I32_2S = int32[:, :]
U8_2, U8_3 = uint8[:, ::1], uint8[:, :, ::1]
U8_2S, U16_2, U16_2S = uint8[:, :], uint16[:, ::1], uint16[:, :]
