"""Starting and stopping the server of an arm."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from harness import warden
from harness.errors import ServerStartError
from harness.ports import free_port, older_listener
from harness.spec_arm import Arm

PORT_ATTEMPTS = 3
POLL_S = 0.25
HEALTH_S = 3.0
STOP_S = 2 * warden.GRACE_S + 10
_PORT_TAKEN = re.compile(
    r"address already in use|Errno 98|port \d+ .*(in use|occupied|taken)", re.I
)
_TELLING = re.compile(r"error|exception|refus|cannot|can't|not enough|needs?\b|require|fatal", re.I)
_FRAME = re.compile(r"^\s|^Traceback|^During handling|^The above exception|^[\^~\s]+$")


def command_line(arm: Arm, port: int) -> list[str]:
    """The arm's command with its port; `python` is the interpreter that runs the harness."""
    assert arm.command is not None
    words = [*shlex.split(arm.command.replace("{port}", str(port))), *arm.args]
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    return words


def telling_line(log: str) -> str:
    """The last line of a server log that says what went wrong, or its last line."""
    lines = [line.strip() for line in log.splitlines()[-200:] if not _FRAME.match(line)]
    lines = [line for line in lines if line]
    for line in reversed(lines):
        if _TELLING.search(line):
            return line[:300]
    return lines[-1][:300] if lines else "(its log is empty)"


class Server:
    """One running server, its process tree and its log."""

    def __init__(self, name: str, arm: Arm, log_path: Path) -> None:
        self.name = name
        self.arm = arm
        self.log_path = log_path
        self.port = 0
        self._warden: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, timeout_s: float) -> None:
        """Start it on a free port and wait until it is healthy. Raises ServerStartError."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self.port = free_port()
            self._launch()
            try:
                await self._until_healthy(timeout_s)
            except ServerStartError as error:
                self.stop()
                # somebody else may bind the port between our check and the server's start
                taken = _PORT_TAKEN.search(f"{error}\n{self._log_tail()}")
                if attempt == PORT_ATTEMPTS or not taken:
                    raise
            else:
                return

    def _launch(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = command_line(self.arm, self.port)
        # -I -S: the warden loads neither our environment's site packages nor its hooks
        leash = [sys.executable, "-I", "-S", warden.__file__, *command]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.arm.env}
        with self.log_path.open("wb") as log:
            self._warden = subprocess.Popen(
                leash,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    async def _until_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        timeout = aiohttp.ClientTimeout(total=HEALTH_S)
        async with aiohttp.ClientSession(self.base_url, timeout=timeout) as session:
            while time.monotonic() < deadline:
                if not self.alive():
                    assert self._warden is not None
                    raise ServerStartError(
                        f"server of arm {self.name} ended at start with status "
                        f"{self._warden.returncode}: {self.why()}"
                    )
                if await _is_healthy(session):
                    self._refuse_foreign_answer()
                    return
                await asyncio.sleep(POLL_S)
        raise ServerStartError(
            f"server of arm {self.name} is not healthy after {timeout_s:g} s "
            f"(limits.start_s): {self.why()}"
        )

    def _refuse_foreign_answer(self) -> None:
        assert self._warden is not None
        owner = older_listener(self.port, self._warden.pid)
        if owner is not None:
            raise ServerStartError(
                f"arm {self.name}: port {self.port} was taken by process {owner}"
            )

    def alive(self) -> bool:
        """Is the process there?"""
        return self._warden is not None and self._warden.poll() is None

    def why(self) -> str:
        """The telling line of its log, and where the log is."""
        return f"{telling_line(self._log_tail())} (log: {self.log_path})"

    def _log_tail(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - 65536))
            return log.read().decode(errors="replace")

    def let_go(self) -> None:
        """Ask the warden to end the process tree, without waiting."""
        if self._warden is not None and self._warden.stdin is not None:
            self._warden.stdin.close()

    def stop(self) -> None:
        """End the whole process tree and wait for it. Safe to call twice."""
        if self._warden is None:
            return
        self.let_go()
        try:
            self._warden.wait(STOP_S)
        except subprocess.TimeoutExpired:
            # the warden itself hangs: take its tree down from here
            for pid in [*warden.descendants(self._warden.pid), self._warden.pid]:
                _kill(pid)
            self._warden.wait()
        self._warden = None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


async def _is_healthy(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
