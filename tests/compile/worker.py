"""`python -m tests.compile.worker TOOLS OPERATOR...`: measure, with the Triton on the path."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import triton

from tests.compile.offline import TARGETS, cases, measure
from tests.compile.resources import NOW_AT


def main(tools: Path, operators: list[str]) -> None:
    """Print {"triton": version, "resources": [...]}, in the order of cases, then targets."""
    measured = []
    for case in cases(operators):
        for target in case.targets or TARGETS:
            # a compiler that fails says where it failed, not on what
            sys.stderr.write(f"{NOW_AT}{case.name} on {target}\n")
            measured.append(asdict(measure(case, target, tools)))
    json.dump({"triton": triton.__version__, "resources": measured}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
