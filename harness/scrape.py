"""Reading `/metrics` while load runs: on a connection of its own, and never at the load's cost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from harness.metric_map import MetricMap
from harness.promtext import parse_metrics
from harness.telemetry import Telemetry

PATH = "/metrics"
PERIOD_S = 0.5
TIMEOUT = aiohttp.ClientTimeout(total=5)


class Scraper:
    """Samples one server's page into `telemetry`; what goes wrong becomes a gap, never an error."""

    def __init__(self, session: aiohttp.ClientSession, metrics: MetricMap) -> None:
        self.telemetry = Telemetry()
        self._session = session
        self._wants = metrics.wants()

    async def take(self) -> bool:
        """Read the page once; say whether it could be read. It may have nothing to say yet."""
        t_ns = time.perf_counter_ns()
        try:
            async with self._session.get(PATH, timeout=TIMEOUT) as response:
                text = await response.text()
                t_ns = time.perf_counter_ns()
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError) as error:
            self.telemetry.add_gap(t_ns, type(error).__name__)
            return False
        if response.status != 200:
            self.telemetry.add_gap(t_ns, f"HTTP {response.status}")
            return False
        # a page may be megabytes of histograms
        page = await asyncio.to_thread(parse_metrics, text, self._wants)
        if page.malformed:
            self.telemetry.add_gap(t_ns, f"{page.malformed} lines are not samples")
            return False
        self.telemetry.add(t_ns, page.samples)
        return True

    async def repeat(self, period_s: float) -> None:
        """Take a sample every period until cancelled; a slow page delays the next one."""
        while True:
            await asyncio.sleep(period_s)
            await self.take()


@asynccontextmanager
async def scraping(
    session: aiohttp.ClientSession, metrics: MetricMap, period_s: float | None = None
) -> AsyncIterator[Telemetry]:
    """Sample for the length of the block, with a reading at its begin and, without error, its end.

    The load's session keeps no connection for another request, so every reading has its own.
    Let the server come to rest inside the block, so that the last reading has counted everything.
    """
    scraper = Scraper(session, metrics)
    began = await scraper.take()
    task = asyncio.create_task(scraper.repeat(PERIOD_S if period_s is None else period_s))
    try:
        yield scraper.telemetry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    scraper.telemetry.complete = await scraper.take() and began
