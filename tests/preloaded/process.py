"""Starting `python -m ...` from the preloaded parent of this pytest process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from sglang_spin.cpu import bootstrap
from tests.preloaded import modules

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120
# models are folders here: a hub that is asked about them is only waited for
OFFLINE = {"HF_HUB_OFFLINE": "1"}
# the modules of the tiny models; SGLang imports 250 others, which takes each scheduler two seconds
MODELS = ("deepseek_v2", "deepseek_nextn", "deepseek_v4", "deepseek_v4_nextn", "glm4_moe")
UNUSED = "SGLANG_DISABLED_MODEL_ARCHS"


class Process:
    """A process that leads a session of its own, started here or forked by the parent."""

    def __init__(self, pid: int, wait: Callable[[float], int]) -> None:
        self.pid, self._wait = pid, wait
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end; the exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._wait(timeout)
        return self.returncode

    def kill(self) -> None:
        """Kill it with everything it started, and wait."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(30)


def start(
    arguments: list[str],
    env: dict[str, str],
    stdout: IO[Any],
    stderr: IO[Any],
    *,
    sglang: bool = False,
) -> Process:
    """Start `python -m *arguments` in the repository's folder.

    env: variables beside _common(). sglang: from a parent that has imported SGLang as well, unless
    this is known not to fit.
    """
    environment = {**_common(), **env}
    read = modules.read_once(environment, sglang=True)
    # what is not there yet is set by the launcher, as it was for the parent
    fits = read.items() <= _environment().items() and not _has_sglang(env)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_parent(sglang and fits))
    # inherited by what is started, and a runner in the background may have it either way
    interrupts = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    request = {"arguments": arguments, "environment": environment, "interrupts": interrupts}
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], [stdout.fileno(), stderr.fileno()])
    connection.sendall(data[sent:])
    answers = connection.makefile("r")

    def wait(timeout: float) -> int:
        if not select.select([connection], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(arguments, timeout)
        with connection, answers:
            return int(answers.readline())

    return Process(int(answers.readline()), wait)


def start_fresh(
    arguments: list[str], env: dict[str, str], stdout: IO[Any], stderr: IO[Any]
) -> Process:
    """The same without the parent, in an interpreter that has imported nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**OFFLINE, **os.environ, **env},
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    return Process(process.pid, process.wait)


def run(
    arguments: list[str], env: dict[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python -m *arguments` to its end. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start(arguments, env, out, err)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        texts = [stream.seek(0) or stream.read() for stream in (out, err)]
    assert process.returncode is not None
    return subprocess.CompletedProcess(arguments, process.returncode, *texts)


def _common() -> dict[str, str]:
    """The variables of every forked process."""
    return {**OFFLINE, UNUSED: _unused_models(), **os.environ}


def _has_sglang(env: dict[str, str]) -> bool:
    """Whether the import path puts a copy of SGLang first."""
    return any((Path(folder) / "sglang").is_dir() for folder in modules.import_path(env))


@cache
def _unused_models() -> str:
    [package] = find_spec("sglang").submodule_search_locations  # type: ignore[union-attr]
    models = (Path(package) / "srt" / "models").glob("*.py")
    return ",".join(sorted(path.stem for path in models if path.stem not in MODELS))


@cache
def _environment() -> dict[str, str]:
    return bootstrap.environment(_common())


@cache
def _parent(sglang: bool) -> str:
    """The socket of a parent of this process's own, which starts with the first request for it."""
    folder = tempfile.mkdtemp(prefix="preloaded-")
    path = f"{folder}/socket"
    command = [sys.executable, "-m", "tests.preloaded.parent", path, *["sglang"] * sglang]
    parent = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdin=subprocess.PIPE)

    def end() -> None:
        parent.kill()
        parent.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not Path(path).exists():
        assert parent.poll() is None, "the preloaded parent ended"
        assert time.monotonic() < deadline, "the preloaded parent does not answer"
        time.sleep(0.05)
    return path
