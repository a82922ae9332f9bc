"""What the offline compiler needs to know about a kernel: its argument types and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class CompileCase:
    """One specialisation of one kernel, as production launches it.

    signature: non-constexpr argument to Triton type ("*fp32", "i32"); a type ending in ":16" is an
    integer that is always a multiple of 16. Pointers are taken as 16-byte aligned, which torch's
    allocator grants. product: the operand format of the matrix product, None where there is none.
    targets: those that launch this specialisation, None for all. max_registers: the launch's
    `maxnreg`, which only CUDA has.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    product: Literal["fp8", "fp4"] | None = None
    targets: tuple[str, ...] | None = None
    fp_fusion: bool = True
    max_registers: int | None = None

    def __post_init__(self) -> None:
        named = set(self.signature) | set(self.constants)
        wanted = set(self.kernel.arg_names)
        if named != wanted:
            raise ValueError(
                f"compile case {self.name!r}: arguments {sorted(named ^ wanted)} are either missing"
                f" from the case or unknown to {self.kernel.__name__}"
            )
