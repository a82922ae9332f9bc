"""What was measured. Without Triton, because pytest's own process reads it."""

from __future__ import annotations

from dataclasses import dataclass

NOW_AT = "compiling "  # begins the line in which a worker says what it turns to


@dataclass(frozen=True)
class Resources:
    """What one kernel takes on one target; bytes where not said otherwise.

    case and product: as in the CompileCase; stack: per thread, spills and local arrays alike
    (hip: private segment); spills: loads and stores of local memory in the code (hip: spilled
    registers); matrix: matrix-unit instructions and how many there are.
    """

    case: str
    target: str
    product: str | None
    registers: int
    shared: int
    stack: int
    spills: int
    matrix: dict[str, int]
