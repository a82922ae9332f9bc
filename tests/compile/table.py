"""The compile table as Markdown: the same text for the same compiler output."""

from __future__ import annotations

from pathlib import Path

from tests.compile.resources import Resources

PATH = Path(__file__).parents[2] / "benchmarks" / "results" / "compile.md"
_HEAD = """\
# What the compiler makes of the kernels

Written by `python -m tests.compile`, compared by `pytest tests/compile`. Registers are per thread;
shared memory and stack in bytes, the stack per thread; gfx may reserve one that no instruction
touches. Spills count loads and stores of local memory (gfx: scratch) in the machine code; lanes,
scalars that gfx keeps in a lane of a vector register, in no memory. Matrix lists matrix-unit
instructions: QGMMA and UTCQMMA take fp8, UTCOMMA block-scaled fp4, HGMMA and the bf16 or f16 MFMA
what lesser formats widen to. gfx942 multiplies the e4m3fnuz type, which is what it is compiled for.
"""
_COLUMNS = "| kernel | target | registers | shared | stack | spills | lanes | matrix |"


def render(measured: dict[str, list[Resources]]) -> str:
    """One section per Triton version, newest first."""
    lines = [_HEAD]
    for version in sorted(measured, reverse=True):
        lines += [f"## Triton {version}", "", _COLUMNS, "|---" * _COLUMNS.count(" | ") + "|---|"]
        lines += [_row(resources) for resources in measured[version]]
        lines.append("")
    return "\n".join(lines)


def _row(r: Resources) -> str:
    matrix = ", ".join(f"{count} {name}" for name, count in sorted(r.matrix.items())) or "none"
    return (
        f"| {r.case} | {r.target} | {r.registers} | {r.shared} | {r.stack} | {r.spills}"
        f" | {r.lanes} | {matrix} |"
    )
