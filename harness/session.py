"""One sitting of a campaign: from its first server to its last, or to Ctrl-C."""

import asyncio
import signal
from pathlib import Path

import uvloop

from harness.campaign import Campaign, run_campaign
from harness.errors import HarnessError, PreflightError
from harness.progress import Progress


def run_session(campaign: Campaign, logs: Path, progress: Progress) -> bool:
    """Run what is not done; True when SIGINT or SIGTERM ended it. Servers are down either way.

    Errors that the user must see become `campaign.stopped`.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_supervised(campaign, logs, progress))
    except HarnessError as error:
        before = "preflight: " if isinstance(error, PreflightError) else ""
        campaign.stopped = f"{before}{error}"
        return False


async def _supervised(campaign: Campaign, logs: Path, progress: Progress) -> bool:
    task = asyncio.ensure_future(run_campaign(campaign, logs, progress))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        campaign.stopped = "interrupted; `harness resume` goes on"
        return True
    return False
