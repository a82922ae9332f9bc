"""A real server process for the end-to-end tests: `python -m sglang_spin.launch` on a free port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 300


class Server:
    """A running server. Answers are decoded JSON."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
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
    """The launcher's command line."""
    return [sys.executable, "-m", "sglang_spin.launch", f"--model={model}", *arguments]


@contextmanager
def serve(
    log: Path, *arguments: str, env: dict[str, str] | None = None, model: str = "tiny-dsa"
) -> Iterator[Server]:
    """Start a server, wait until it answers, and end it with everything it started."""
    port = free_port()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command(f"--port={port}", *arguments, model=model),
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        _wait_ready(process, port, log)
        yield Server(process, port, log)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group and reap the leader."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
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
        time.sleep(0.3)
    raise AssertionError(f"server not ready in {READY_TIMEOUT_S} s: {log.read_text()[-3000:]}")
