"""Changing one statement of an upstream function whose body the ledger has already verified."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any


def replace_statement(owner: Any, name: str, old: str, new: str) -> None:
    """Recompile owner.name with source text `old` replaced by `new`, in its own module's globals.

    Both texts must have the same number of lines, so that tracebacks still point at the right ones.
    Raises LookupError unless `old` occurs exactly once.
    """
    function = getattr(owner, name)
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    if source.count(old) != 1 or old.count("\n") != new.count("\n"):
        raise LookupError(f"{owner.__name__}.{name}: expected exactly one {old!r}")
    padded = "\n" * (first - 1) + source.replace(old, new)
    scope: dict[str, Any] = {}
    exec(
        compile(padded, inspect.getsourcefile(function) or name, "exec"),
        function.__globals__,
        scope,
    )
    setattr(owner, name, scope[name])
