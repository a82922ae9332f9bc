"""Everything that watches a load: the client's own loop, the server's metrics, the GPUs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from harness.gpu import find_gpus, watching_gpus
from harness.looplag import watching_loop_lag
from harness.metric_map import MetricMap
from harness.runrecord import ArmRun
from harness.scrape import scraping


@asynccontextmanager
async def observing(
    session: aiohttp.ClientSession, metrics: MetricMap, run: ArmRun
) -> AsyncIterator[None]:
    """Watch for the length of the block; it must end with the server at rest.

    What is seen is in `run` while it grows, so that an interrupted load keeps its part.
    """
    async with (
        scraping(session, metrics) as run.telemetry,
        watching_gpus(find_gpus()) as run.gpus,
        watching_loop_lag() as run.lag,
    ):
        yield
