"""Control of a vLLM server: facts, cache reset, requests in it. Its metrics answer most of it."""

import re
from typing import Any

import aiohttp

from harness.errors import HarnessError, PreflightError
from harness.promtext import MetricsPage, parse_metrics

CONFIG = "vllm:cache_config_info"
HITS = "vllm:prefix_cache_hits_total"
IN_SERVER = ("vllm:num_requests_running", "vllm:num_requests_waiting")
DEV_MODE = "start vLLM with VLLM_SERVER_DEV_MODE=1, or its prefix cache cannot be emptied"
_OURS = re.compile("|".join((CONFIG, HITS, *IN_SERVER)))


async def read_page(session: aiohttp.ClientSession) -> MetricsPage:
    """The series of `/metrics` that control needs. Raises HarnessError when it cannot be read."""
    try:
        async with session.get("/metrics") as response:
            if response.status != 200:
                raise HarnessError(f"GET /metrics: HTTP {response.status}")
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HarnessError(f"GET /metrics: {type(error).__name__} {error}") from None
    return parse_metrics(text, lambda name: _OURS.fullmatch(name) is not None)


async def cache_geometry(session: aiohttp.ClientSession) -> tuple[int, int | None]:
    """Block size and capacity, both in tokens; capacity None where the server does not say.

    Raises PreflightError when the server is none of vLLM's.
    """
    page = await read_page(session)
    for name, labels in page.samples:
        if name == CONFIG:
            config = dict(labels)
            size, blocks = config.get("block_size", ""), config.get("num_gpu_blocks", "")
            if size.isdigit():
                return int(size), int(size) * int(blocks) if blocks.isdigit() else None
    raise PreflightError(
        f"the server has no /server_info with a page_size and no {CONFIG} on /metrics, so cached "
        "tokens cannot be verified"
    )


async def reset_prefix_cache(session: aiohttp.ClientSession) -> str | None:
    """Ask once; None when it was done, else why not. Raises HarnessError when it never can be."""
    async with session.post("/reset_prefix_cache") as response:
        text = (await response.text()).strip()[:120]
        if response.status == 404:
            raise HarnessError(f"POST /reset_prefix_cache: HTTP 404; {DEV_MODE}")
        # newer versions answer 200 and say in the body that they did not
        if response.status != 200 or re.search(r'"success":\s*false', text):
            return f"HTTP {response.status} {text}"
    return None


async def requests_in_server(session: aiohttp.ClientSession) -> int:
    """Requests that run or wait."""
    page = await read_page(session)
    return int(sum(value for (name, _), value in page.samples.items() if name in IN_SERVER))


async def cache_hits(session: aiohttp.ClientSession) -> float | None:
    """Tokens that the prefix cache has ever served; None when the server does not count them."""
    page = await read_page(session)
    hits = [value for (name, _), value in page.samples.items() if name == HITS]
    return sum(hits) if hits else None


def version_of(answer: dict[str, Any] | None) -> str | None:
    """The version that `/version` names."""
    return None if answer is None else str(answer.get("version"))
