"""The patch ledger: which upstream bodies we rely on, and proof that they have not changed.

Source is read from disk and parsed, never imported, so a check needs no GPU start-up and works in
any process.
"""

from __future__ import annotations

import ast
import hashlib
import os
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from sglang_spin.engine.patched import PATCHED

SGLANG_VERSION = "0.5.23"

GOOD = ("ok", "patched")

# what a process has proven, for the ones that it starts: parsing the sources takes each a second
PROVEN = "_SGLANG_SPIN_PROVEN"

_untouched: set[str] = set()
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class PatchDrift(SystemExit):
    """Upstream is not what a patch was written for.

    SystemExit, because SGLang logs and survives any Exception of a plugin.
    """


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream callable, the body it was read at, and when the entry may go.

    name: "package.module:Qualified.name". expect: fingerprint() of that body in SGLANG_VERSION.
    """

    name: str
    expect: str
    why: str
    drop_when: str

    @property
    def dotted(self) -> str:
        """The spelling SGLang's HookRegistry takes."""
        return self.name.replace(":", ".")


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one target: status is "ok", "patched" (by patches/), "changed" or "missing"."""

    target: Target
    status: str
    detail: str

    def __str__(self) -> str:
        return f"{self.status:8} {self.target.name}  {self.detail}"


def fingerprint(name: str) -> str:
    """Hash the AST of a callable without docstrings, so comments and layout do not count.

    Raises LookupError when the module file or the name in it is gone.
    """
    module, _, qualname = name.partition(":")
    node: ast.AST = _parse(_module_file(module))
    for part in qualname.split("."):
        node = _child(node, part, name)
    node = deepcopy(node)  # the parsed file is shared by its targets
    for inner in ast.walk(node):
        if isinstance(inner, _DEFINITIONS) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def inspect_target(target: Target) -> Finding:
    """Compare one target with the installed source."""
    try:
        found = fingerprint(target.name)
    except LookupError as error:
        return Finding(target, "missing", str(error))
    if found == PATCHED.get(target.name):
        return Finding(target, "patched", found)
    if found != target.expect:
        return Finding(target, "changed", f"found {found}, expected {target.expect}")
    return Finding(target, "ok", found)


def is_patched(name: str) -> bool:
    """Whether the installed body of this name is the one that patches/ makes of it."""
    return name not in _untouched and name in PATCHED and fingerprint(name) == PATCHED[name]


def require(targets: tuple[Target, ...]) -> None:
    """Raise PatchDrift with one line unless this is the pinned SGLang with unchanged targets.

    A package that patches/ was applied to must have all of it. Sources that no patch was applied to
    are read once: this process and its children trust the result while the files are the same.
    """
    require_version()
    proof, proven = _proof(targets), os.environ.get(PROVEN, "").split()
    if proof not in proven:
        patched = _require_bodies(targets)
        if patched or proof is None:
            return
        os.environ[PROVEN] = " ".join([*proven, proof])
    _untouched.update(target.name for target in targets)


def _require_bodies(targets: tuple[Target, ...]) -> bool:
    """Whether the bodies are the patched ones. Raises PatchDrift."""
    findings = [inspect_target(target) for target in targets]
    patched = any(finding.status == "patched" for finding in findings)
    for finding in findings:
        target = finding.target
        if patched and finding.status == "ok" and target.name in PATCHED:
            raise PatchDrift(
                f"sglang_spin: {target.name} is not patched and others are; apply all of patches/ "
                f"to a fresh copy of sglang=={SGLANG_VERSION}"
            )
        if finding.status not in GOOD:
            raise PatchDrift(
                f"sglang_spin: {target.name} is {finding.status} upstream ({finding.detail}); "
                f"install sglang=={SGLANG_VERSION} or a sglang-spin release made for yours"
            )
    return patched


def _proof(targets: tuple[Target, ...]) -> str | None:
    """A digest of the ledger and of the identity of the files it is about; None if one is gone."""
    facts: list[object] = [(target.name, target.expect) for target in targets]
    try:
        files = {_module_file(target.name.partition(":")[0]) for target in targets}
    except LookupError:
        return None
    for path in sorted(files):
        found = path.stat()
        facts.append((str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def installed_version() -> str | None:
    """The installed SGLang version, or None."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def require_version() -> None:
    """Raise PatchDrift unless SGLANG_VERSION is installed."""
    found = installed_version()
    if found != SGLANG_VERSION:
        raise PatchDrift(
            f"sglang_spin: needs sglang=={SGLANG_VERSION}, found {found or 'none'}; "
            f"run: pip install sglang=={SGLANG_VERSION}"
        )


def _module_file(module: str) -> Path:
    root, *parts = module.split(".")
    spec = find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"package {root} is not installed")
    base = Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise LookupError(f"module {module} is gone")


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _child(node: ast.AST, part: str, name: str) -> ast.AST:
    # the last definition wins, as at run time; platform branches at module level are searched too
    found = None
    stack = list(getattr(node, "body", []))
    while stack:
        item = stack.pop(0)
        if isinstance(item, _DEFINITIONS):
            found = item if item.name == part else found
        else:
            for field in ("body", "orelse", "handlers", "finalbody"):
                stack.extend(getattr(item, field, []))
    if found is None:
        raise LookupError(f"{part!r} of {name} is gone")
    return found
