"""Keeps a server on a leash: `python warden.py COMMAND...` ends the whole tree when stdin closes.

The harness holds the other end of stdin, so the server also ends when the harness is killed without
a chance to clean up. As a subreaper the warden stays the ancestor of every descendant, even of one
that left its session, and so finds them all. Standard library only; run by path, it loads nothing.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.2
PAUSE_S = 0.05
GRACE_S = 8.0
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run the command until it ends or stdin closes; return its status (128 + n for signal n)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stopping: list[int] = []
    # Ctrl-C is for the harness: it decides when the server ends, by closing stdin
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    while child.poll() is None and not stopping and not _stdin_closed(POLL_S):
        pass
    end_descendants(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _stdin_closed(wait_s: float) -> bool:
    ready, _, _ = select.select([0], [], [], wait_s)
    return bool(ready) and os.read(0, 4096) == b""


def end_descendants(child: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the command, then to what it leaves behind, then SIGKILL; reap them all.

    The command goes first: a server that loses its workers before it is told to stop takes that
    for a crash and starts to diagnose it.
    """
    child.terminate()
    _wait_until_gone(child, lambda: child.poll() is not None)
    _signal_all(signal.SIGTERM)
    _wait_until_gone(child, lambda: not descendants(os.getpid()))
    while child.poll() is None or descendants(os.getpid()):
        _signal_all(signal.SIGKILL)
        time.sleep(PAUSE_S)
        _reap_orphans(child.pid)


def _wait_until_gone(child: "subprocess.Popen[bytes]", gone: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GRACE_S
    while not gone() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        child.poll()
        _reap_orphans(child.pid)


def _signal_all(number: int) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap_orphans(child_pid: int) -> None:
    """Collect what was handed to us as subreaper; the direct child's status belongs to Popen."""
    for pid in descendants(os.getpid()):
        if pid != child_pid and _state_and_parent(pid) == ("Z", os.getpid()):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def descendants(root: int) -> list[int]:
    """Process ids below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            _, parent = _state_and_parent(int(entry.name))
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "?", -1
    # the name in parentheses may hold spaces and parentheses
    state, parent, *_ = stat.rpartition(")")[2].split()
    return state, int(parent)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
