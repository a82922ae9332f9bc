"""Ports: a free one, and whether an older process answers where our server should."""

import errno
import random
import socket
from pathlib import Path

from harness.errors import ServerStartError

# below Linux's ephemeral range, so that no outgoing connection takes one before the server does
PORTS = range(20000, 32768)
_LISTEN = "0A"
_START_TIME_FIELD = 19


def free_port() -> int:
    """A port that nothing listens on now. Raises ServerStartError when none is found."""
    for port in random.sample(PORTS, 100):
        if port_is_free(port):
            return port
    raise ServerStartError(f"no free port found between {PORTS[0]} and {PORTS[-1]}")


def port_is_free(port: int) -> bool:
    """Can a server bind it on all addresses?"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # the server sets it too; without it a port in TIME_WAIT would look busy
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def older_listener(port: int, than_pid: int) -> int | None:
    """Process that listens on the port and was there before `than_pid`; None also when unknown.

    A younger one is accepted: a server in a container is not below the process we started.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    limit = _start_ticks(than_pid)
    if not inodes or limit is None:
        return None
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        started = _start_ticks(int(folder.name))
        if started is not None and started < limit and _holds(folder / "fd", inodes):
            return int(folder.name)
    return None


def _listening_inodes(port: int) -> list[str]:
    inodes: list[str] = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                inodes.append(words[9])
    return inodes


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_TIME_FIELD])


def _holds(fd_folder: Path, inodes: set[str]) -> bool:
    try:
        return any(str(fd.readlink()) in inodes for fd in fd_folder.iterdir())
    except OSError:
        # not ours to read, or gone
        return False
