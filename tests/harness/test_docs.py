"""Commands and workflows that the documents show are commands that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.__main__ import command_parser

DOCS = [
    Path("README.md"),
    Path("docs/harness.md"),
    Path("docs/ci.md"),
    Path("docs/ci-workflow.yml"),
]
COMMAND = re.compile(r"^(?:run: )?(?:\.venv/bin/)?harness ([a-z].*)$")


def shown_commands(path: Path) -> list[str]:
    """Whole lines that are harness commands, without comments; a folded line is joined first."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line.strip().partition("   #")[0] for line in text.splitlines()]
    return [found[1].partition(" || ")[0] for line in lines if (found := COMMAND.match(line))]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_shown_commands_parse(path: Path) -> None:
    """Every command line in the documents is accepted by the parser."""
    commands = shown_commands(path)
    assert commands
    for command in commands:
        command_parser().parse_args(shlex.split(command))


def test_workflow_is_a_workflow() -> None:
    """It parses, runs on pull requests, measures before it judges, and keeps the result always."""
    workflow: dict[Any, Any] = yaml.safe_load(Path("docs/ci-workflow.yml").read_text())
    # YAML 1.1 reads the key `on` as true
    assert "pull_request" in workflow[True]
    steps = workflow["jobs"]["gate"]["steps"]
    text = [str(step.get("run", "")) for step in steps]
    measure = next(i for i, run in enumerate(text) if "harness run configs/ci.yaml" in run)
    judge = next(i for i, run in enumerate(text) if "harness gate" in run)
    assert measure < judge
    assert steps[-1]["if"] == "always()"
