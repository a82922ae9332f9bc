"""The shape of the code: which way imports point, how long things are, what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for package in ("sglang_spin", "harness") for path in (ROOT / package).rglob("*.py")
)
FILE_LINES, FUNCTION_LINES = 250, 40
# a launch names every argument three times: signature, call, compile case
KERNEL_FILE_LINES, KERNEL_LINES = 280, 120
KERNEL_FILES = ("triton.py", "primitives.py", "selection.py")

# what each package may import of ours; a name covers everything below it
ALLOWED = {
    "sglang_spin.config": (),
    "sglang_spin.presets": (),
    "sglang_spin.core": ("sglang_spin.config",),
    "sglang_spin.kernels": ("sglang_spin.config", "sglang_spin.core"),
    "sglang_spin.engine": ("sglang_spin.config", "sglang_spin.core", "sglang_spin.kernels"),
    "sglang_spin.cpu": ("sglang_spin.engine.ledger",),
    "sglang_spin.lab": ("sglang_spin.config", "sglang_spin.core"),
    "harness": (),
}
# packages that only some of ours may import
OUTSIDE = {
    "sglang": ("sglang_spin.engine", "sglang_spin.cpu"),
    "triton": ("sglang_spin.kernels",),
    "torch": ("sglang_spin",),
    "sglang_spin": ("sglang_spin",),
    "aiohttp": ("harness",),
}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def _below(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_imports_point_one_way(path: Path) -> None:
    """A module imports its own package and what its package may rest on, nothing else of ours."""
    module = _module(path)
    homes = [package for package in ALLOWED if _below(module, package)]
    for name in _imports(path):
        for package in ALLOWED:
            if homes and _below(name, package) and package not in homes:
                allowed = any(_below(name, a) for home in homes for a in ALLOWED[home])
                assert allowed, f"{module} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_outside_packages_stay_in_their_place(path: Path) -> None:
    """Only the engine and the CPU engine know SGLang; only kernels know Triton."""
    module = _module(path)
    for name in _imports(path):
        for package, homes in OUTSIDE.items():
            if name.partition(".")[0] == package:
                assert any(_below(module, home) for home in homes), f"{module} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=_module)
def test_sizes(path: Path) -> None:
    """Files and functions stay short enough to be read at once."""
    text = path.read_text()
    kernels = path.name in KERNEL_FILES
    lines = len(text.splitlines())
    assert lines <= (KERNEL_FILE_LINES if kernels else FILE_LINES), f"{_module(path)}: {lines}"
    limit = KERNEL_LINES if kernels else FUNCTION_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= limit, f"{_module(path)}.{node.name}: {lines} lines"


def test_importing_the_package_is_free() -> None:
    """`import sglang_spin` loads neither torch nor sglang, and offers its version alone."""
    code = (
        "import sys, sglang_spin; print([n for n in dir(sglang_spin) if not n.startswith('__')],"
        "[m for m in ('torch', 'sglang', 'triton') if m in sys.modules], sglang_spin.__version__)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    assert printed.startswith("[] [] 0.")


def test_options_are_read_in_one_place() -> None:
    """SPIN_* variables are read by sglang_spin.config alone."""
    readers = [_module(p) for p in FILES if '"SPIN_' in p.read_text()]
    assert readers == ["sglang_spin.config"]
