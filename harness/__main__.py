"""`harness run CONFIG`, `harness mock`. Exit: 0 ok, 1 failed, 2 invalid, 3 inconclusive."""

import argparse
import sys
from pathlib import Path

from harness import mock
from harness.command import RunCommand, execute
from harness.errors import HarnessError
from harness.progress import Progress


def main() -> int:
    """Parse the command line, run, and turn errors into one line and an exit code."""
    options = _parser().parse_args()
    if options.command == "mock":
        return mock.serve(options)
    command = RunCommand(options.config, options.results, options.set, options.dry_run)
    try:
        return execute(command, Progress())
    except HarnessError as error:
        for line in str(error).splitlines():
            print(f"harness: {line}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a campaign")
    run.add_argument("config", type=Path, help="spec, as configs/quickstart.yaml")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key")
    run.add_argument("--results", type=Path, default=Path("results"), help="root of the results")
    run.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    mock.add_options(commands.add_parser("mock", help="a scripted stand-in for a server"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
