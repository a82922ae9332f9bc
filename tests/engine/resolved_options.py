"""What becomes of command lines: `python -m tests.engine.resolved_options MODEL < REQUEST`.

A process of its own, because plugins load once. REQUEST is a JSON list of [argv, environment]; each
is resolved by SGLang with SPIN's plugin loaded, as a server would before it starts. Prints one JSON
list: the message of the SystemExit or error that ended it, "" where the server would have gone on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

Case = tuple[list[str], dict[str, str]]


def outcomes(model: Path, cases: list[Case]) -> list[str]:
    """Resolve each case on top of the CPU engine's own options."""
    from sglang_spin.config import SpinConfig
    from sglang_spin.cpu import bootstrap

    env = bootstrap.environment({**os.environ, **SpinConfig(enabled=True).to_env()})
    command = [sys.executable, "-m", "tests.engine.resolved_options", str(model)]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, env=env, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _resolve(argv: list[str]) -> str:
    from sglang.srt.server_args import prepare_server_args

    try:
        prepare_server_args(argv).resolve_once()
    except (SystemExit, Exception) as error:  # noqa: BLE001  whatever ends it is the answer
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Answer every case."""
    from sglang.srt.plugins import load_plugins

    from sglang_spin.cpu.launch_defaults import server_args

    load_plugins()
    logging.disable(logging.CRITICAL)
    answers = []
    for argv, added in json.load(sys.stdin):
        before = dict(os.environ)
        os.environ.update(added)
        with contextlib.redirect_stdout(sys.stderr):
            defaults = server_args(sys.argv[1])
            answers.append(_resolve([f"--model-path={sys.argv[1]}", *defaults, *argv]))
        os.environ.clear()
        os.environ.update(before)
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
