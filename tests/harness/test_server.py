"""Starting and stopping servers: ports, logs, and that nothing is left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import ports, server, warden
from harness.errors import ServerStartError
from harness.ports import free_port, port_is_free
from harness.server import Server, command_line, telling_line
from harness.spec_arm import Arm

MOCK = "python -m harness.mock --port {port}"


def gone(pid: int, within_s: float = 30) -> bool:
    """Does the process end in time?"""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def tree_of(running: Server) -> list[int]:
    """All processes of a server, the warden first."""
    assert running._warden is not None
    root = running._warden.pid
    return [root, *warden.descendants(root)]


def start(name: str, command: str, folder: Path, timeout_s: float = 60) -> Server:
    """Start a server, or stop what there is of it and raise."""
    made = Server(name, Arm(command=command), folder / f"{name}.log")
    try:
        asyncio.run(made.start(timeout_s))
    except BaseException:
        made.stop()
        raise
    return made


def test_start_and_stop(tmp_path: Path) -> None:
    """A started server answers on its port; stopping ends every process and frees the port."""
    made = start("spin", MOCK, tmp_path)
    pids = tree_of(made)
    assert made.alive()
    assert not port_is_free(made.port)
    made.stop()
    made.stop()
    assert all(gone(pid) for pid in pids)
    assert port_is_free(made.port)


def test_refusal_is_told_with_its_telling_line(tmp_path: Path) -> None:
    """A server that ends at start is reported with the line that says why."""
    command = MOCK + " --refuse 'needs 8 GPUs, this machine has none'"
    with pytest.raises(
        ServerStartError, match="arm spin ended at start with status 1: error: needs 8 GPUs"
    ):
        start("spin", command, tmp_path)


def test_unhealthy_server_is_given_up(tmp_path: Path) -> None:
    """A server that never becomes healthy is ended at its deadline."""
    with pytest.raises(ServerStartError, match="not healthy after 1 s"):
        start("spin", MOCK + " --start-delay-ms 60000", tmp_path, timeout_s=1)


def test_missing_program(tmp_path: Path) -> None:
    """A program that is not there is one line."""
    with pytest.raises(ServerStartError, match="cannot start no-such-program"):
        start("spin", "no-such-program {port}", tmp_path)


def test_port_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that another process takes between check and start costs a retry, not the run."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        offered = iter([taken, free_port()])
        monkeypatch.setattr(server, "free_port", lambda: next(offered))
        made = start("spin", MOCK, tmp_path)
        assert made.port != taken
        made.stop()


def test_leftover_server_is_not_mistaken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy answer of an older process on the port is refused and another port is taken."""
    leftover = start("old", MOCK, tmp_path)
    # process start times have a resolution of 10 ms
    time.sleep(0.05)
    offered = iter([leftover.port, free_port()])
    monkeypatch.setattr(server, "free_port", lambda: next(offered))
    made = start("new", MOCK, tmp_path)
    assert made.port != leftover.port
    made.stop()
    leftover.stop()


def test_older_listener_is_found() -> None:
    """The process that listens is named when it is older, and only then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        time.sleep(0.05)
        younger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert ports.older_listener(port, younger.pid) == os.getpid()
        assert ports.older_listener(port, os.getpid()) is None
        younger.communicate()


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
if os.fork():
    print(child.pid, os.getpid(), flush=True)
    time.sleep(600)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["close", "kill harness side", "terminate"])
def test_warden_ends_the_whole_tree(how: str) -> None:
    """Children that left the session and ignore SIGTERM end too, whichever way the leash goes."""
    leash = [sys.executable, "-I", "-S", "-c", _SHORT_GRACE, warden.__file__]
    # a process in between stands for the harness, so that it can be killed
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *leash, sys.executable, "-c", STUBBORN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    root = int(holder.stdout.readline())
    holder.stdout.readline()
    pids = warden.descendants(root)
    assert len(pids) == 3
    if how == "close":
        holder.stdin.close()
    elif how == "terminate":
        os.kill(root, signal.SIGTERM)
    else:
        holder.kill()
    assert all(gone(pid) for pid in pids)
    holder.stdin.close()
    holder.wait()
    assert gone(root)
    holder.stdout.close()


_SHORT_GRACE = """
import runpy, sys
sys.argv = sys.argv[1:]
module = runpy.run_path(sys.argv[0])
module["end_descendants"].__globals__["GRACE_S"] = 0.5
sys.exit(module["main"](sys.argv[1:]))
"""
_HOLDER = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_command_line() -> None:
    """The port is put in wherever it is named, and `python` is this interpreter."""
    arm = Arm(command="python -m x --port {port} --url 'http://a b:{port}'")
    expected = [sys.executable, "-m", "x", "--port", "7", "--url", "http://a b:7"]
    assert command_line(arm, 7) == expected


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "(its log is empty)"),
        ("loading\nRuntimeError: no GPU\nbye\n", "RuntimeError: no GPU"),
        ("Traceback (most recent call last):\n  File x\n    y\nValueError: z\n", "ValueError: z"),
        ("one\ntwo\n\n", "two"),
    ],
)
def test_telling_line(log: str, line: str) -> None:
    """The last line that looks like a reason, else the last line; never a stack frame."""
    assert telling_line(log) == line
