"""Command lines for the tests."""

from __future__ import annotations

PUBLISHED = {"gpu": "b300", "model": "deepseek-v4-flash", "context": "507000", "batch": "96"}


def cost(**changes: str) -> list[str]:
    """Arguments of `cost` at the published point, with changes."""
    options = PUBLISHED | changes
    return ["cost", *(part for key, value in options.items() for part in (f"--{key}", value))]
