"""The specialisations of the fold_select kernel that servers launch, for the offline compiler."""

from __future__ import annotations

from typing import Any

from sglang_spin.kernels.compile_case import CompileCase

_TYPES = {
    "*fp32": "vertical distance prior",
    "*i32": "recent budgets layer_class generation step stashed arrivals page_table lengths"
    " pages blocks compact_lengths",
    "*i64": "kept_total seen_total totals request_rows",
    "*i1": "fresh audited",
    "*u8": "flags",
    "i32": "batch width state_rows state_blocks prior_stride table_stride length_stride"
    " request_stride layer_stride row_stride class_stride line_stride seed more audit_every"
    " audit_stride",
    "fp32": "keep gain staleness",
}
_SIGNATURE = {name: kind for kind, names in _TYPES.items() for name in names.split()}
# four programs on a multiprocessor; left alone, ptxas spills a word to get there
MAX_REGISTERS = 64
AUDIT_REGISTERS = 72  # three: with audits, four spill on Blackwell
_SERVED: dict[str, Any] = {"DIAGONAL": True, "STALENESS": True, "RANDOM": False, "FILL_TAIL": False}


def max_registers(audit: bool) -> int:
    """Registers that a thread may take, with or without audits."""
    return AUDIT_REGISTERS if audit else MAX_REGISTERS


def compile_cases(kernel: Any, constants: dict[str, Any], **launch: Any) -> tuple[CompileCase, ...]:
    """One shape for every width, as rows are walked in chunks.

    constants, launch: of every case, as the kernel is launched with them.
    """
    filled = {"FILL_TAIL": True, "RANDOM": False, "DIAGONAL": False, "STALENESS": False}
    v4 = {**_SERVED, "RATIO": 4}
    variants = (
        ("spin, aligned, audits", _SERVED, "aligned audit"),
        ("spin, aligned, audits, verify", _SERVED, "aligned audit verify"),
        ("spin, aligned, audits, classes", _SERVED, "aligned audit classes"),
        ("spin, aligned, audits, classes, verify", _SERVED, "aligned audit classes verify"),
        ("spin, aligned", _SERVED, "aligned"),
        ("spin", {**_SERVED, "FILL_TAIL": True}, ""),
        ("spin V4, aligned, audits", v4, "aligned audit"),
        ("spin V4, aligned, audits, classes", v4, "aligned audit classes"),
        ("prev-iter, dense", filled, ""),
        ("random", {**filled, "RANDOM": True}, ""),
    )
    return tuple(
        CompileCase(
            name=f"fold_select {name}",
            kernel=kernel,
            signature=_signature("aligned" in kind, _absent(kind)),
            constants={
                **dict.fromkeys(_absent(kind)),
                "RATIO": 1,
                **flags,
                **constants,
                "AUDIT": "audit" in kind,
                "CLASSED": "classes" in kind,
                "VERIFY": "verify" in kind,
            },
            fp_fusion=False,
            max_registers=max_registers("audit" in kind),
            **launch,
        )
        for name, flags, kind in variants
    )


def _absent(kind: str) -> tuple[str, ...]:
    """Arguments that this kind of launch has not."""
    audit = () if "audit" in kind else ("audited", "flags")
    return audit if "classes" in kind else (*audit, "layer_class")


def _signature(aligned: bool, absent: tuple[str, ...]) -> dict[str, str]:
    """aligned: all widths are multiples of 16, which makes loads wide."""
    strides = ("state_blocks", "table_stride", "layer_stride", "row_stride")
    wide = dict.fromkeys(strides, "i32:16") if aligned else {}
    return {name: kind for name, kind in _SIGNATURE.items() if name not in absent} | wide
