"""A real server process for the end-to-end tests: `python -m sglang_spin.launch` on a free port."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.preloaded.process import Process, start, start_fresh

READY_TIMEOUT_S = 300
POOL = 65536


class Server:
    """A running server. Answers are decoded JSON."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def generate(self, prompts: list[list[int]], tokens: int, **options: Any) -> list[dict]:
        """Greedy continuations of token-id prompts, sent as one batch, ignoring end tokens."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompts, "sampling_params": sampling, **options}
        return self.post("/generate", body)

    def spin(self) -> dict[str, Any] | None:
        """The `spin` block of the first rank, None on a stock server."""
        return self.get("/server_info")["internal_states"][0].get("spin")

    def flush(self) -> None:
        """Empty the prefix cache."""
        self.post("/flush_cache?timeout=30", None)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url(path), timeout=60) as reply:
            return json.loads(reply.read())

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        request = urllib.request.Request(self._url(path), data=data)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=600) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def free_port() -> int:
    """A port nobody listens on; SGLang takes more next to it, so leave it room."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(*arguments: str, model: str = "tiny-dsa") -> list[str]:
    """The launcher's command line, after `python -m`.

    A smaller pool than the launcher's own: touching all of its pages takes a second and a half.
    """
    pool = [] if model == "tiny-v4" else [f"--max-total-tokens={POOL}"]
    return ["sglang_spin.launch", f"--model={model}", *pool, *arguments]


@contextmanager
def serve(
    log: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    model: str = "tiny-dsa",
    fresh: bool = False,
) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it with everything it started.

    fresh: in a new interpreter, as users start it, and not from the preloaded parent.
    """
    port = free_port()
    # several ranks are given variables by the launcher that SGLang reads when it is imported
    ranks = any(word.startswith(("--tp-size", "--dp-size")) for word in arguments)
    begin = start_fresh if fresh else partial(start, sglang=not ranks)
    with log.open("wb") as sink:
        process = begin(command(f"--port={port}", *arguments, model=model), env or {}, sink, sink)
    try:
        _wait_ready(process, port, log)
        yield Server(process, port, log)
    finally:
        process.kill()


def _wait_ready(process: Process, port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(
                f"server ended with {process.returncode}: {log.read_text()[-3000:]}"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"server not ready in {READY_TIMEOUT_S} s: {log.read_text()[-3000:]}")
