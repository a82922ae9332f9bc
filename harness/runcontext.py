"""What the phases of a run share."""

from dataclasses import dataclass

import aiohttp

from harness.control import ServerFacts
from harness.progress import Progress
from harness.spec import Spec


class PhaseFailed(Exception):
    """A phase before the load did not do what it must, so the run is not worth loading."""


@dataclass(frozen=True)
class RunContext:
    """Everything the phases of one run need.

    still_primed: the server holds the contexts since an earlier run.
    """

    spec: Spec
    session: aiohttp.ClientSession
    facts: ServerFacts
    progress: Progress
    still_primed: bool = False
