"""A server that somebody else started and will stop."""

from harness.spec_arm import Arm


class ExternalServer:
    """Stands where harness.server.Server does; the harness only talks to it."""

    def __init__(self, name: str, arm: Arm) -> None:
        assert arm.base_url is not None
        self.name = name
        self.base_url = arm.base_url

    async def start(self, timeout_s: float) -> None:
        """Nothing to start; whether it answers is found out when its facts are read."""

    def alive(self) -> bool:
        """Nothing is known of its process: requests show whether it is there."""
        return True

    def why(self) -> str:
        """Where to look instead of a log."""
        return f"the server at {self.base_url} was not started by the harness"

    def let_go(self) -> None:
        """It is not ours to end."""

    def stop(self) -> None:
        """It is not ours to end."""
