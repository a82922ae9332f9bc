"""Register and shared-memory budgets of budgets.toml, held against what was measured."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.compile.resources import Resources

PATH = Path(__file__).with_name("budgets.toml")


def excesses(measured: list[Resources]) -> list[str]:
    """One line for each kernel and target that is over its budget or has none."""
    budgets = tomllib.loads(PATH.read_text())
    lines = []
    for r in measured:
        budget = budgets.get(r.case, {}).get(r.target)
        if budget is None:
            lines.append(
                f"{r.case} on {r.target}: no budget in {PATH.name}"
                f" (measured registers = {r.registers}, shared = {r.shared})"
            )
            continue
        for name in ("registers", "shared"):
            if getattr(r, name) > budget[name]:
                used = getattr(r, name)
                lines.append(f"{r.case} on {r.target}: {name} {used}, budget {budget[name]}")
    return lines
