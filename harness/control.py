"""The control side of a server: facts, flush, idleness. Never used while load is timed.

Every question is asked in SGLang's way; a server without that endpoint is asked in vLLM's.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from harness import vllm_server
from harness.counters import SpinCounters, spin_counters
from harness.errors import HarnessError, PreflightError
from harness.record import RequestRecord
from harness.wire import COMPLETIONS, TokenIds, Wire

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
    kind: Literal["sglang", "vllm"] = "sglang"
    wire: Wire = COMPLETIONS

    def request(self, prompt: TokenIds, max_tokens: int) -> bytes:
        """A streamed request for `max_tokens` tokens on `prompt`, in the format of the arm."""
        return self.wire.body(self.model, prompt, max_tokens)

    def expected_cached(self, prefix_tokens: int) -> int:
        """Cached tokens after priming: whole pages only."""
        return prefix_tokens // self.page_size * self.page_size


class _Absent(HarnessError):
    """The server has no such endpoint."""


async def get_json(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    """GET a JSON object. Raises HarnessError naming the endpoint."""
    try:
        async with session.get(path) as response:
            if response.status == 404:
                raise _Absent(f"GET {path}: HTTP 404")
            if response.status != 200:
                raise HarnessError(f"GET {path}: HTTP {response.status}")
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise HarnessError(f"GET {path}: {type(error).__name__} {error}") from None
    if not isinstance(answer, dict):
        raise HarnessError(f"GET {path}: expected a JSON object, got {type(answer).__name__}")
    return answer


async def _get_if_there(session: aiohttp.ClientSession, path: str) -> dict[str, Any] | None:
    try:
        return await get_json(session, path)
    except _Absent:
        return None


async def server_facts(session: aiohttp.ClientSession) -> ServerFacts:
    """Read what the server says of itself. Raises PreflightError when the page size is missing."""
    info = await _get_if_there(session, "/server_info")
    models = await get_json(session, "/v1/models")
    try:
        model = models["data"][0]
        name = str(model["id"])
    except (KeyError, IndexError, TypeError):
        raise PreflightError("/v1/models names no model") from None
    # vLLM has a /server_info of its own in development mode
    if info is None or "vllm_config" in info:
        return await _vllm_facts(session, name, model.get("max_model_len"))
    page_size = info.get("page_size")
    if not isinstance(page_size, int) or page_size < 1:
        raise PreflightError("/server_info has no page_size, so cached tokens cannot be verified")
    return ServerFacts(
        model=name,
        page_size=page_size,
        capacity_tokens=info.get("max_total_num_tokens"),
        max_prompt_tokens=info.get("max_req_input_len"),
        version=info.get("version"),
        spin=spin_counters(info),
        raw=info,
    )


async def _vllm_facts(
    session: aiohttp.ClientSession, model: str, longest: int | None
) -> ServerFacts:
    page_size, capacity = await vllm_server.cache_geometry(session)
    version = vllm_server.version_of(await _get_if_there(session, "/version"))
    return ServerFacts(
        model=model,
        page_size=page_size,
        capacity_tokens=capacity,
        max_prompt_tokens=longest,
        version=version,
        spin=None,
        raw={
            "server": "vllm",
            "version": version,
            "page_size": page_size,
            "max_total_num_tokens": capacity,
            "max_model_len": longest,
        },
        kind="vllm",
    )


async def read_spin(session: aiohttp.ClientSession) -> SpinCounters | None:
    """SPIN's counters now; None for a server that has none."""
    return spin_counters(await _get_if_there(session, "/server_info") or {})


async def flush(session: aiohttp.ClientSession, timeout_s: float) -> None:
    """Empty the prefix cache. Raises HarnessError if it is not empty within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    answer: str | None = "no answer"
    while time.monotonic() < deadline:
        try:
            answer = await _flush_once(session, max(1.0, deadline - time.monotonic()))
        except (aiohttp.ClientError, TimeoutError) as error:
            answer = f"{type(error).__name__} {error}"
        if answer is None:
            return
        await asyncio.sleep(POLL_S)
    raise HarnessError(f"POST /flush_cache failed for {timeout_s:g} s, last answer: {answer}")


async def _flush_once(session: aiohttp.ClientSession, wait_s: float) -> str | None:
    """None when it was done, else why not."""
    async with session.post("/flush_cache", params={"timeout": f"{wait_s:.0f}"}) as response:
        if response.status == 200:
            return None
        if response.status != 404:
            return f"HTTP {response.status} {(await response.text()).strip()[:120]}"
    return await vllm_server.reset_prefix_cache(session)


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
    answer = await _get_if_there(session, "/v1/loads?include=core")
    if answer is None:
        return await vllm_server.requests_in_server(session)
    return sum(
        load.get("num_running_reqs", 0) + load.get("num_waiting_reqs", 0)
        for load in answer.get("loads", [])
    )


async def cache_hits(session: aiohttp.ClientSession, facts: ServerFacts) -> float | None:
    """Tokens ever served from the cache, where replies leave a 0 out and it must be counted."""
    return await vllm_server.cache_hits(session) if facts.kind == "vllm" else None


def settle_unreported(record: RequestRecord, before: float | None, after: float | None) -> None:
    """Take an unreported count of cached tokens for 0 where the server's counter proves it.

    vLLM leaves the field out when it is 0; so it does when reporting is off, which the verify phase
    finds out. before, after: cache_hits around this request alone.
    """
    if record.cached_tokens is None and before is not None and before == after:
        record.cached_tokens = 0
