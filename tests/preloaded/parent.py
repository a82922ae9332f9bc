"""`python -m tests.preloaded.parent SOCKET [sglang]`: fork a process for each that connects.

A request is one JSON line, {"arguments", "environment", "interrupts"}, with the file descriptors
that become stdout and stderr. The answers are two lines: the process id, and in the end the exit
status as `subprocess` counts it. The parent ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from tests.preloaded import modules, spawning

LAUNCHER = "sglang_spin.launch"
WORKERS = 4  # children that a server spawns: a detokenizer, and a scheduler for each rank


def main(path: str, sglang: bool) -> None:
    """Serve requests; in a forked process, run what was asked for."""
    loaded = modules.load(sglang)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the minders
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                break
            connection.close()
        else:
            return
    request, streams = _receive(connection)
    if (child := os.fork()) != 0:
        _mind(connection, child)
    os.setsid()
    connection.sendall(f"{os.getpid()}\n".encode())
    connection.close()
    _become(request, streams, loaded)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, 2**20, 2)
    while not data.endswith(b"\n"):
        data += connection.recv(2**20)
    return json.loads(data), streams


def _mind(connection: socket.socket, child: int) -> NoReturn:
    """Wait for the child, and tell the one who asked how it ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int], loaded: modules.Loaded) -> None:
    """Run `python -m MODULE ARGUMENTS` in this process as if it had just been started."""
    for target, stream in enumerate([os.open(os.devnull, os.O_RDONLY), *streams]):
        os.dup2(stream, target)
        os.close(stream)
    interrupts = signal.default_int_handler if request["interrupts"] else signal.SIG_IGN
    signal.signal(signal.SIGINT, interrupts)
    arguments, environment = request["arguments"], request["environment"]
    if arguments[0] == LAUNCHER:
        loaded.enter(environment)
        arguments, environment = _launch(arguments)
    if not loaded.fits(environment):
        os.execve(sys.executable, [sys.executable, "-m", *arguments], environment)
    loaded.enter(loaded.added | environment)
    spawning.fork_instead(WORKERS)
    _run(arguments)


def _launch(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Run the launcher; what it executes in its place. Ends with it if it executes nothing."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)

        def execute(_path: str, argv: list[str]) -> NoReturn:
            sys.stdout.flush()
            with os.fdopen(writer, "w") as answer:
                json.dump([argv[2:], dict(os.environ)], answer)
            os._exit(0)

        os.execv = execute
        _run(arguments)
        raise SystemExit
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not text:
        os._exit(status % 256)
    return tuple(json.loads(text))


def _run(arguments: list[str]) -> None:
    sys.argv = list(arguments)
    sys.orig_argv = [sys.executable, "-m", *arguments]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sglang=sys.argv[2:] == ["sglang"])
