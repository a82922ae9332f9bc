"""The control side of a server: facts, flush, idleness. Never used while load is timed."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.counters import SpinCounters, spin_counters
from harness.errors import HarnessError, PreflightError

POLL_S = 0.2


@dataclass(frozen=True)
class ServerFacts:
    """What the harness needs to know of a server; None where it does not say.

    capacity_tokens: KV entries it can hold; max_prompt_tokens: longest prompt it takes.
    """

    model: str
    page_size: int
    capacity_tokens: int | None
    max_prompt_tokens: int | None
    version: str | None
    spin: SpinCounters | None
    raw: dict[str, Any]

    def expected_cached(self, prefix_tokens: int) -> int:
        """Cached tokens after priming: whole pages only."""
        return prefix_tokens // self.page_size * self.page_size


async def get_json(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    """GET a JSON object. Raises HarnessError naming the endpoint."""
    try:
        async with session.get(path) as response:
            if response.status != 200:
                raise HarnessError(f"GET {path}: HTTP {response.status}")
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise HarnessError(f"GET {path}: {type(error).__name__} {error}") from None
    if not isinstance(answer, dict):
        raise HarnessError(f"GET {path}: expected a JSON object, got {type(answer).__name__}")
    return answer


async def server_facts(session: aiohttp.ClientSession) -> ServerFacts:
    """Read `/server_info` and `/v1/models`. Raises PreflightError when the page size is missing."""
    info = await get_json(session, "/server_info")
    models = await get_json(session, "/v1/models")
    page_size = info.get("page_size")
    if not isinstance(page_size, int) or page_size < 1:
        raise PreflightError("/server_info has no page_size, so cached tokens cannot be verified")
    try:
        model = str(models["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise PreflightError("/v1/models names no model") from None
    return ServerFacts(
        model=model,
        page_size=page_size,
        capacity_tokens=info.get("max_total_num_tokens"),
        max_prompt_tokens=info.get("max_req_input_len"),
        version=info.get("version"),
        spin=spin_counters(info),
        raw=info,
    )


async def read_spin(session: aiohttp.ClientSession) -> SpinCounters | None:
    """SPIN's counters now."""
    return spin_counters(await get_json(session, "/server_info"))


async def flush(session: aiohttp.ClientSession, timeout_s: float) -> None:
    """Empty the prefix cache. Raises HarnessError if it is not empty within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    answer = "no answer"
    while time.monotonic() < deadline:
        wait = max(1.0, deadline - time.monotonic())
        try:
            async with session.post("/flush_cache", params={"timeout": f"{wait:.0f}"}) as response:
                if response.status == 200:
                    return
                answer = f"HTTP {response.status} {(await response.text()).strip()[:120]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            answer = f"{type(error).__name__} {error}"
        await asyncio.sleep(POLL_S)
    raise HarnessError(f"POST /flush_cache failed for {timeout_s:g} s, last answer: {answer}")


async def wait_idle(session: aiohttp.ClientSession, timeout_s: float) -> SpinCounters | None:
    """Wait until nothing runs or waits and the counters are still; return the counters.

    Late samples of the priming would otherwise count as load. Raises HarnessError on timeout.
    """
    deadline = time.monotonic() + timeout_s
    before = await read_spin(session)
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        busy = await _requests_in_server(session)
        now = await read_spin(session)
        if busy == 0 and now == before:
            return now
        before = now
    raise HarnessError(f"the server is still not idle after {timeout_s:g} s")


async def _requests_in_server(session: aiohttp.ClientSession) -> int:
    answer = await get_json(session, "/v1/loads?include=core")
    return sum(
        load.get("num_running_reqs", 0) + load.get("num_waiting_reqs", 0)
        for load in answer.get("loads", [])
    )
