"""What can stop the harness, and the exit code of each.

HarnessError             2   something failed
 +- ConfigError          2   the spec is wrong
 +- ResultError          2   a stored result cannot be used
 +- PreflightError       2   this machine or server cannot run the spec
     +- ServerStartError 2   a server command refused or died before it was ready

1 is FAIL and nothing else, so that a script can tell a regression from a broken machine.
"""

from collections.abc import Sequence

EXIT_OK = 0
EXIT_FAIL = 1
EXIT_INVALID = 2
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130


class HarnessError(Exception):
    """Something outside the workload failed; the message is one line for the user."""

    exit_code = EXIT_INVALID


class ConfigError(HarnessError):
    """The spec is wrong: one line per problem, each with file, key and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PreflightError(HarnessError):
    """The spec is fine, but cannot be run here."""


class ResultError(HarnessError):
    """A result is not there, damaged, not valid, or measured something else: no verdict."""


class ServerStartError(PreflightError):
    """A server did not become ready."""
