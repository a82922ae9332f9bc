"""Compile kernels for GPUs that are not there, and read what the compiler made of them.

Here rather than in the package, because nothing that ships uses it. Imported in the worker process
only: a process holds one Triton, and that of pytest may be the interpreter.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_spin.kernels.compile_case import CompileCase
from tests.compile.resources import Resources
from tests.compile.versions import cache_folder

TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_103": GPUTarget("cuda", 103, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
_MATRIX_SASS = re.compile(r"\b((?:Q|H|UTCQ|UTCH|UTCO)MMA|[QHI]GMMA)\b")
_MATRIX_GCN = re.compile(r"\bv_mfma_(?:scale_)?f32_\w+?_(fp8_fp8|f8f6f4|bf16|f16)\b")
_SCRATCH = re.compile(r"\bscratch_(?:load|store)_")
_LANE = re.compile(r"\bv_writelane_b32\b")
_ALIGNED = [["tt.divisibility", 16]]


def cases(operators: list[str]) -> list[CompileCase]:
    found: list[CompileCase] = []
    for operator in operators:
        module = importlib.import_module(f"sglang_spin.kernels.{operator}.triton")
        found += module.COMPILE_CASES
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise ValueError(f"compile cases share a name: {sorted(names)}")
    return found


def measure(case: CompileCase, target: str, tools: Path) -> Resources:
    """Compile one case; `tools` holds the cuobjdump and nvdisasm of a Triton wheel."""
    compiled = _compile(case, target)
    if TARGETS[target].backend == "cuda":
        return _read_cubin(case, target, compiled, tools)
    return _read_gcn(case, target, compiled)


def _compile(case: CompileCase, target: str) -> Any:
    names = case.kernel.arg_names
    signature, attributes = {}, {}
    for i, name in enumerate(names):
        kind, _, multiple = case.signature.get(name, "constexpr").partition(":")
        if target == "gfx942":
            kind = kind.replace("fp8e4nv", "fp8e4b8")  # the e4m3 that this chip multiplies
        signature[name] = kind
        if kind.startswith("*") or multiple:
            attributes[(i,)] = _ALIGNED
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {
        "num_warps": case.num_warps,
        "num_stages": case.num_stages,
        "enable_fp_fusion": case.fp_fusion,
    }
    if case.max_registers is not None and target.startswith("sm_"):
        options["maxnreg"] = case.max_registers
    return triton.compile(source, target=TARGETS[target], options=options)


def _read_cubin(case: CompileCase, target: str, compiled: Any, tools: Path) -> Resources:
    facts = _remembered(compiled.asm["cubin"], tools)
    return Resources(
        case=case.name,
        target=target,
        product=case.product,
        shared=compiled.metadata.shared,
        lanes=0,
        **facts,
    )


def _remembered(cubin: bytes, tools: Path) -> dict[str, Any]:
    """What the disassemblers say, kept beside the compiled kernels: they take longest.

    Known by the machine code, by the disassembler, and by how this file reads it.
    """
    program = (tools / "nvdisasm").stat()
    parts = (
        cubin,
        Path(__file__).read_bytes(),
        f"{program.st_size} {program.st_mtime_ns}".encode(),
    )
    name = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    path = cache_folder() / "disassembled" / f"{name}.json"
    if path.is_file():
        known: dict[str, Any] = json.loads(path.read_text())
        return known
    facts = _disassemble(cubin, tools)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as partial:
        json.dump(facts, partial)
    Path(partial.name).rename(path)
    return facts


def _disassemble(cubin: bytes, tools: Path) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run(tools / "cuobjdump", "--dump-resource-usage", file.name)
        sass = _run(tools / "nvdisasm", "-c", file.name)
    fields = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if fields is None:
        raise RuntimeError(f"no resource usage in {usage!r}")
    registers, stack, local = map(int, fields.groups())
    return {
        "registers": registers,
        "stack": stack + local,
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        "matrix": _tally(_MATRIX_SASS, sass),
    }


def _read_gcn(case: CompileCase, target: str, compiled: Any) -> Resources:
    text = compiled.asm["amdgcn"]

    def field(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        if found is None:
            raise RuntimeError(f"the code of {case.name} for {target} has no .{name}")
        return int(found.group(1))

    return Resources(
        case=case.name,
        target=target,
        product=case.product,
        registers=field("vgpr_count"),
        shared=compiled.metadata.shared,
        stack=field("private_segment_fixed_size"),
        spills=max(field("vgpr_spill_count"), len(_SCRATCH.findall(text))),
        lanes=len(_LANE.findall(text)),
        matrix=_tally(_MATRIX_GCN, text),
    )


def _tally(pattern: re.Pattern[str], code: str) -> dict[str, int]:
    found = pattern.findall(code)
    return {name: found.count(name) for name in sorted(set(found))}


def _run(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program.name} {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
