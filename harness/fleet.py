"""The servers of a campaign: all up at once, or one at a time."""

from pathlib import Path

from harness.errors import ServerStartError
from harness.external import ExternalServer
from harness.progress import Progress
from harness.server import Server
from harness.spec import Spec

AnyServer = Server | ExternalServer


class Fleet:
    """Hands out the server of an arm, starting it when needed."""

    def __init__(self, spec: Spec, log_folder: Path, progress: Progress) -> None:
        self._spec = spec
        self._log_folder = log_folder
        self._progress = progress
        self._servers: dict[str, AnyServer] = {}

    async def start_all(self) -> None:
        """Start every arm, one after the other: side by side they compete for memory and cores."""
        for name in self._spec.arms:
            await self.server(name)

    async def server(self, arm: str) -> AnyServer:
        """The arm's running server. Raises ServerStartError."""
        known = self._servers.get(arm)
        if known is not None:
            if known.alive():
                return known
            raise ServerStartError(f"server of arm {arm} ended between runs: {known.why()}")
        if self._spec.servers == "swap":
            self.stop()
        server = self._new_server(arm)
        self._servers[arm] = server
        self._progress.phase("start", f"server of arm {arm}")
        await server.start(self._spec.limits.start_s)
        return server

    def _new_server(self, arm: str) -> AnyServer:
        if self._spec.arms[arm].base_url is not None:
            return ExternalServer(arm, self._spec.arms[arm])
        # logs of a campaign that is resumed stay
        number = len(list(self._log_folder.glob("*.log"))) + 1
        return Server(arm, self._spec.arms[arm], self._log_folder / f"{number:02d}-{arm}.log")

    def stop(self) -> None:
        """End every server."""
        for server in self._servers.values():
            server.let_go()
        for server in self._servers.values():
            server.stop()
        self._servers.clear()
