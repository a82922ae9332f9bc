"""A scripted stand-in for a server: OpenAI completions, delays, faults, a prefix cache, SPIN.

`python -m harness.mock --port 31000 --itl-ms 5`. Each field of MockScript is an option.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from typing import Any

import orjson
from aiohttp import web

from harness.mock_script import FAULTS, MockScript, MockState

STALL_S = 3600.0

STATE = web.AppKey("state", MockState)


def build_app(script: MockScript) -> web.Application:
    """The mock as an aiohttp application."""
    # aiohttp's default of 1 MiB would refuse long token-id prompts
    app = web.Application(client_max_size=1 << 30)
    app[STATE] = MockState(script)
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/server_info", _server_info),
            web.get("/v1/models", _models),
            web.get("/v1/loads", _loads),
            web.post("/flush_cache", _flush),
            web.post("/v1/completions", _completions),
        ]
    )
    return app


async def _health(_: web.Request) -> web.Response:
    return web.Response()


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "mock"}]})


async def _server_info(request: web.Request) -> web.Response:
    state = request.app[STATE]
    script = state.script
    internal: dict[str, Any] = {} if script.spin_target < 0 else {"spin": state.spin_block()}
    info = {
        "page_size": script.page_size,
        "max_total_num_tokens": script.capacity,
        "max_req_input_len": script.max_prompt,
        "version": "mock",
        "internal_states": [internal],
    }
    return web.json_response(info)


async def _loads(request: web.Request) -> web.Response:
    load = {"num_running_reqs": request.app[STATE].running, "num_waiting_reqs": 0}
    return web.json_response({"loads": [load]})


async def _flush(request: web.Request) -> web.Response:
    state = request.app[STATE]
    if state.running:
        return web.Response(status=400, text="Flush cache failed.")
    state.pages.clear()
    return web.Response(text="Cache flushed.")


async def _completions(request: web.Request) -> web.StreamResponse:
    state = request.app[STATE]
    body = orjson.loads(await request.read())
    fault = state.script.fault if body["max_tokens"] >= state.script.fault_min_tokens else "none"
    if fault == "http-500":
        return web.json_response({"error": {"message": "scripted"}}, status=500)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    state.running += 1
    state.served += 1
    held: list[bytes] = []
    try:
        async for piece in _reply(state, body, fault):
            if fault == "buffered":
                held.append(piece)
            else:
                await response.write(piece)
        if held:
            await response.write(b"".join(held))
    finally:
        state.running -= 1
    await response.write_eof()
    return response


async def _reply(state: MockState, body: dict[str, Any], fault: str) -> AsyncIterator[bytes]:
    """The events of one reply, paced by the script."""
    script, prompt, wanted = state.script, body["prompt"], body["max_tokens"]
    base = {"prompt_tokens": len(prompt)}
    cached = _cached_usage(script, state.match_and_insert(prompt))
    clock = asyncio.get_running_loop().time
    due = clock() + script.ttft_ms / 1e3
    sent = 0
    if script.empty_first_chunk:
        yield _event({"choices": [{"text": "", "finish_reason": None}]})
    while sent < wanted:
        await asyncio.sleep(max(0.0, due - clock()))
        due += script.itl_ms / 1e3
        if sent >= wanted // 2 and fault not in ("none", "buffered", "no-done"):
            async for piece in _fault(fault, base | {"completion_tokens": sent}):
                yield piece
            return
        step = min(script.tokens_per_chunk, wanted - sent)
        state.count_decode_step(len(prompt) + sent)
        ids = [_output_id(script, prompt, sent + i) for i in range(step)]
        sent += step
        last = sent == wanted
        yield _chunk(script, ids, base | {"completion_tokens": sent}, "length" if last else None)
    if script.usage != "none":
        yield _event({"choices": [], "usage": base | {"completion_tokens": sent} | cached})
    if fault != "no-done":
        yield b"data: [DONE]\n\n"


async def _fault(fault: str, usage: dict[str, int]) -> AsyncIterator[bytes]:
    """What comes instead of the second half of the reply."""
    if fault == "in-band-error":
        yield _event({"error": {"message": "scripted <b>failure</b>", "code": 500}})
    elif fault == "garbage":
        yield b"data: {not json\n\n"
    elif fault == "stall":
        await asyncio.sleep(STALL_S)
    elif fault == "die":
        os._exit(9)
    else:
        reason = {"early-stop": "stop", "short": "length", "abort": "abort"}[fault]
        yield _event({"choices": [{"text": "", "finish_reason": reason}], "usage": usage})
    yield b"data: [DONE]\n\n"


def _cached_usage(script: MockScript, matched: int) -> dict[str, Any]:
    if script.cached == "absent":
        return {"prompt_tokens_details": None}
    value = matched if script.cached == "radix" else int(script.cached)
    return {"prompt_tokens_details": {"cached_tokens": value}}


def _output_id(script: MockScript, prompt: Sequence[int], position: int) -> int:
    return (prompt[-1] + 7 * position + (position >= script.diverge_at)) % 1000


def _chunk(
    script: MockScript, ids: list[int], usage: dict[str, int], finish_reason: str | None
) -> bytes:
    choice: dict[str, Any] = {"text": " t" * len(ids), "finish_reason": finish_reason}
    if script.token_ids:
        choice["token_ids"] = ids
    event: dict[str, Any] = {"choices": [choice]}
    if script.usage == "continuous":
        event["usage"] = usage
    return _event(event)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of the script."""
    parser.add_argument("--port", type=int, required=True)
    for item in fields(MockScript):
        option = "--" + item.name.replace("_", "-")
        choices = FAULTS if item.name == "fault" else None
        parser.add_argument(option, type=type(item.default), default=item.default, choices=choices)


def serve(options: argparse.Namespace) -> int:
    """Serve until ended; return the exit status."""
    script = MockScript(**{item.name: getattr(options, item.name) for item in fields(MockScript)})
    if script.refuse:
        sys.stderr.write(f"starting\nerror: {script.refuse}\n")
        return 1
    # a scripted stall must not hold up the end of the process
    web.run_app(
        _delayed_app(script),
        host="127.0.0.1",
        port=options.port,
        print=None,
        shutdown_timeout=0.1,
        handler_cancellation=True,
    )
    return 0


async def _delayed_app(script: MockScript) -> web.Application:
    await asyncio.sleep(script.start_delay_ms / 1e3)
    return build_app(script)


if __name__ == "__main__":
    option_parser = argparse.ArgumentParser(description="A scripted stand-in for a server.")
    add_options(option_parser)
    raise SystemExit(serve(option_parser.parse_args()))
