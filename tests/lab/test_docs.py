"""The documentation's figures are the command's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_spin.lab.__main__ import main
from tests.lab.requests import cost

DOCUMENT = Path(__file__).parents[2] / "docs" / "cost-model.md"


def test_documented_output_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """The block at the end of docs/cost-model.md is what the documented command prints."""
    main(cost())
    block = DOCUMENT.read_text().split("```text\n")[1].removesuffix("```\n")
    assert block == capsys.readouterr().out


def test_documented_command_is_the_one_compared() -> None:
    """The document prints the very command whose output it shows."""
    assert f"python -m sglang_spin.lab {' '.join(cost())}" in DOCUMENT.read_text()
