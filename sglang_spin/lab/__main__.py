"""`python -m sglang_spin.lab cost`: offline studies. Exit: 0 ok, 2 the request is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from sglang_spin.lab.cost import command as cost

PROGRAM = "python -m sglang_spin.lab"
EXIT_OK, EXIT_USAGE = 0, 2


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors on one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (--help lists the options)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and print what it found."""
    options = _parser().parse_args(arguments)
    try:
        print(cost.run(options), end="")
    except cost.UsageError as error:
        print(f"{PROGRAM} {options.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    about = "model of a decode step's time with and without SPIN; not a measurement"
    cost.add_options(commands.add_parser("cost", help=about, description=about))
    return parser


if __name__ == "__main__":
    sys.exit(main())
