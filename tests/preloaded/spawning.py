"""multiprocessing's spawned children, forked before their parent imported anything of its own."""

from __future__ import annotations

import json
import os
import socket
import sys
from multiprocessing import util
from typing import Any


def fork_instead(count: int) -> None:
    """Have this many children ready; the first that multiprocessing spawns take their places.

    A child waits for its command line, which it runs as `python -c` does. Later ones are started.
    """
    waiting: list[tuple[int, socket.socket]] = []
    for _ in range(count):
        mine, its = socket.socketpair()
        if (child := os.fork()) == 0:
            mine.close()
            for _, other in waiting:
                other.close()
            _wait(its)
        its.close()
        waiting.append((child, mine))
    start = util.spawnv_passfds

    def spawn(path: Any, arguments: list[Any], streams: list[int]) -> int:
        words = [word.decode() if isinstance(word, bytes) else word for word in arguments]
        if not waiting or "--multiprocessing-fork" not in words:
            return start(path, arguments, streams)
        child, connection = waiting.pop(0)
        order = {
            "code": words[words.index("-c") + 1],
            "rest": words[words.index("-c") + 2 :],
            "streams": sorted(map(int, streams)),
            "environment": dict(os.environ),
        }
        with connection:
            socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], order["streams"])
        return child

    util.spawnv_passfds = spawn


def _wait(connection: socket.socket) -> None:
    """Become the spawned process once its command line comes; end if none does."""
    with connection:
        data, received, _, _ = socket.recv_fds(connection, 2**20, 64)
        while data and not data.endswith(b"\n"):
            data += connection.recv(2**20)
    if not data:
        os._exit(0)
    order = json.loads(data)
    _place(received, order["streams"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["-c", *order["rest"]]
    sys.orig_argv = [sys.executable, "-c", order["code"], *order["rest"]]
    exec(order["code"], {"__name__": "__main__"})
    raise SystemExit


def _place(received: list[int], numbers: list[int]) -> None:
    """Give descriptors the numbers that they have in the process that sent them."""
    above = max(*received, *numbers) + 1
    high = [os.dup2(stream, above + i) for i, stream in enumerate(received)]
    for stream in received:
        os.close(stream)
    for stream, number in zip(high, numbers, strict=True):
        os.dup2(stream, number)
        os.close(stream)
