"""The command `harness`. Exit: 0 ok or PASS, 1 FAIL, 2 not valid or failed, 3 inconclusive."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from harness import judge, mock
from harness.command import RunCommand, calibrate, execute, rebuild, resume
from harness.errors import EXIT_INTERRUPTED, EXIT_OK, HarnessError
from harness.progress import Progress
from harness.runstore import write_whole
from harness.schema import schema_text
from harness.tokenize import tokenize

Options = argparse.Namespace


def main() -> int:
    """Parse the command line, run, and turn errors into one line and an exit code."""
    options = command_parser().parse_args()
    action: Callable[[Options], int] = options.action
    try:
        return action(options)
    except HarnessError as error:
        for line in str(error).splitlines():
            print(f"harness: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `harness compare ... | head`: nobody reads on, and Python must not complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _command(options: Options) -> RunCommand:
    return RunCommand(
        options.config,
        options.results,
        options.set,
        options.dry_run,
        getattr(options, "tolerate_noise", False),
    )


def _gate(options: Options) -> int:
    command = judge.GateCommand(
        options.result, options.baseline, tuple(options.set), options.markdown
    )
    return judge.gate(command, Progress())


def _calibrate(options: Options) -> int:
    out = options.out or options.config.with_suffix(".noise.json")
    return calibrate(_command(options), out, Progress())


def _schema(options: Options) -> int:
    if options.out is None:
        print(schema_text(), end="")
    else:
        write_whole(options.out, schema_text().encode())
    return EXIT_OK


def _tokenize(options: Options) -> int:
    return tokenize(options.texts, options.tokenizer, options.out, Progress())


def command_parser() -> argparse.ArgumentParser:
    """Every command and its options."""
    parser = argparse.ArgumentParser(prog="harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, about: str, action: Callable[[Options], int]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(action=action)
        return made

    run = add("run", "run a campaign", lambda o: execute(_command(o), Progress()))
    _add_campaign_options(run)
    run.add_argument(
        "--tolerate-noise",
        action="store_true",
        help="exit 0 where noise alone left no verdict: INCONCLUSIVE, or client_limited runs",
    )
    again = add("calibrate", "run stock against itself and write the noise floor", _calibrate)
    _add_campaign_options(again)
    again.add_argument("--out", type=Path, help="the file, CONFIG.noise.json if not given")
    for name, about, action in (
        ("resume", "go on with an interrupted campaign", resume),
        ("report", "write report and tables anew from the stored runs", rebuild),
    ):
        one = add(name, about, lambda o, action=action: action(o.result, Progress()))  # type: ignore[misc]
        one.add_argument("result", type=Path, help="result folder, as results/quickstart/latest")
    _add_gate_options(add("gate", "PASS, FAIL or INCONCLUSIVE of a result", _gate))
    compare = add(
        "compare", "several results side by side", lambda o: judge.compare(o.result, Progress())
    )
    compare.add_argument("result", type=Path, nargs="+", help="result folders")
    schema = add("schema", "the spec's JSON Schema", _schema)
    schema.add_argument("--out", type=Path, help="file, standard output if not given")
    _add_tokenize_options(add("tokenize", "texts to a corpus of token ids", _tokenize))
    mock.add_options(add("mock", "a scripted stand-in for a server", mock.serve))
    return parser


def _add_campaign_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="spec, as configs/quickstart.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of results")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")


def _add_gate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, help="result folder")
    parser.add_argument("--baseline", type=Path, help="an earlier result to compare ratios with")
    parser.add_argument("--set", action="append", default=[], metavar="gate.KEY=VALUE")
    parser.add_argument("--markdown", type=Path, help="append a summary to this file")


def _add_tokenize_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", type=Path, nargs="+", help="UTF-8 text files")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="the .npy to write")


if __name__ == "__main__":
    sys.exit(main())
