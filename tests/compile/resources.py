"""What was measured. Without Triton, because pytest's own process reads it."""

from __future__ import annotations

from dataclasses import dataclass

NOW_AT = "compiling "  # begins the line in which a worker says what it turns to


@dataclass(frozen=True)
class Resources:
    """What one kernel takes on one target; bytes where not said otherwise.

    case and product: as in the CompileCase; stack: per thread, spills and local arrays alike
    (hip: private segment, which may be reserved and never touched); spills: loads and stores of
    local memory in the code (hip: of scratch); lanes: scalars put into a lane of a vector register
    for want of scalar registers, which costs no memory (hip only); matrix: matrix-unit
    instructions and how many there are.
    """

    case: str
    target: str
    product: str | None
    registers: int
    shared: int
    stack: int
    spills: int
    lanes: int
    matrix: dict[str, int]
