"""`python -m tests.compile`: measure every kernel again, rewrite benchmarks/results/compile.md."""

from __future__ import annotations

import sys

from tests.compile.budgets import excesses
from tests.compile.operators import OPERATORS
from tests.compile.table import PATH, render
from tests.compile.versions import measure_all


def main() -> int:
    """Exit 1, with a line for each, where a kernel is over its budget."""
    try:
        measured = measure_all(OPERATORS)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    PATH.write_text(render(measured))
    print(f"wrote {PATH}")
    over = [line for resources in measured.values() for line in excesses(resources)]
    print(*over, sep="\n", end="\n" if over else "")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
