"""The servers of a campaign: all up at once, or one at a time."""

from pathlib import Path

from harness.progress import Progress
from harness.server import Server
from harness.spec import Spec


class Fleet:
    """Hands out the server of an arm, starting it when needed."""

    def __init__(self, spec: Spec, log_folder: Path, progress: Progress) -> None:
        self._spec = spec
        self._log_folder = log_folder
        self._progress = progress
        self._servers: dict[str, Server] = {}
        self._starts = 0

    async def start_all(self) -> None:
        """Start every arm, one after the other: starts side by side compete for memory and cores."""
        for name in self._spec.arms:
            await self.server(name)

    async def server(self, arm: str) -> Server:
        """The arm's running server. Raises ServerStartError."""
        if arm in self._servers and self._servers[arm].alive():
            return self._servers[arm]
        if self._spec.servers == "swap":
            self.stop()
        self._starts += 1
        log = self._log_folder / f"{arm}-{self._starts}.log"
        server = Server(arm, self._spec.arms[arm], log)
        self._servers[arm] = server
        self._progress.phase("start", f"server of arm {arm}")
        await server.start(self._spec.limits.start_s)
        return server

    def stop(self) -> None:
        """End every server."""
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
