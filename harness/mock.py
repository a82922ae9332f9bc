"""A scripted stand-in for an SGLang or vLLM server: delays, faults, a prefix cache, counters, SPIN.

`python -m harness.mock --port 31000 --itl-ms 5`. Each field of MockScript is an option.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import orjson
from aiohttp import web

from harness.mock_metrics import metrics_page
from harness.mock_reply import STALL_S, Asked, Dropped, read_request, reply_events
from harness.mock_script import CHOICES, MockScript, MockState

STATE = web.AppKey("state", MockState)
STARTED = web.AppKey("started", float)
LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(script: MockScript) -> web.Application:
    """The mock as an aiohttp application."""
    # aiohttp's default of 1 MiB would refuse long token-id prompts
    app = web.Application(client_max_size=1 << 30)
    app[STATE] = MockState(script)
    app[STARTED] = time.monotonic()
    app.add_routes(
        [
            web.get("/health", _health),
            web.get("/v1/models", _models),
            web.get("/metrics", _metrics),
            web.post("/v1/completions", _streaming("completions")),
            web.post("/v1/chat/completions", _streaming("chat")),
        ]
    )
    if script.dialect == "vllm":
        app.add_routes([web.get("/version", _version), web.post("/reset_prefix_cache", _flush)])
    else:
        app.add_routes(
            [
                web.get("/server_info", _server_info),
                web.get("/v1/loads", _loads),
                web.post("/flush_cache", _flush),
                web.post("/generate", _streaming("generate")),
            ]
        )
    return app


async def _health(_: web.Request) -> web.Response:
    return web.Response()


async def _version(_: web.Request) -> web.Response:
    return web.json_response({"version": "mock"})


async def _models(request: web.Request) -> web.Response:
    longest = request.app[STATE].script.max_prompt
    return web.json_response({"data": [{"id": "mock", "max_model_len": longest}]})


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


async def _metrics(request: web.Request) -> web.Response:
    state = request.app[STATE]
    mode = state.script.metrics
    if mode == "off":
        raise web.HTTPNotFound
    if mode == "error":
        return web.Response(status=500, text="scripted")
    if mode == "hang":
        await asyncio.sleep(STALL_S)
    if mode == "garbage":
        return web.Response(text='{"not": "prometheus"}\nsglang:num_queue_reqs{ 1\n')
    if time.monotonic() - request.app[STARTED] < state.script.metrics_late_ms / 1e3:
        return web.Response(text="")
    return web.Response(text=metrics_page(state))


async def _flush(request: web.Request) -> web.Response:
    state = request.app[STATE]
    refused = state.running or state.script.flush == "refuses"
    if not refused and state.script.flush == "works":
        state.pages.clear()
    if state.script.dialect == "vllm":
        return web.json_response({"success": not refused})
    if refused:
        return web.Response(status=400, text="Flush cache failed.")
    return web.Response(text="Cache flushed.")


def _streaming(wire: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        state = request.app[STATE]
        await _slow_upload(request, state.script.upload_kib_s)
        body = orjson.loads(await request.read())
        try:
            asked = read_request(wire, body, "none")
        except KeyError as missing:
            return web.json_response({"error": {"message": f"no {missing}"}}, status=400)
        fault = _fault_of(state, asked.wanted)
        if fault.startswith("http-"):
            return web.json_response({"error": {"message": "scripted"}}, status=int(fault[5:8]))
        return await _respond(request, state, Asked(asked.prompt, asked.wanted, wire, fault))

    return handle


async def _slow_upload(request: web.Request, kib_s: float) -> None:
    """Take the body at this pace; TCP then holds the sender back."""
    if kib_s:
        length = request.content_length or 0
        await asyncio.sleep(length / 1024 / kib_s)


def _fault_of(state: MockState, wanted: int) -> str:
    script = state.script
    if wanted < script.fault_min_tokens:
        return "none"
    state.long_seen += 1
    if script.fault == "http-503-once":
        return "http-503-once" if state.long_seen == 1 else "none"
    return script.fault if state.long_seen % script.fault_every == 0 else "none"


async def _respond(request: web.Request, state: MockState, asked: Asked) -> web.StreamResponse:
    script = state.script
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    end = LINE_ENDS[script.line_end]
    long = asked.wanted >= script.fault_min_tokens
    state.running += 1
    state.waiting += script.queued * long
    state.served += 1
    held: list[bytes] = []
    try:
        async for data in reply_events(state, asked):
            comment = b": ping" + end if script.comments else b""
            event = comment + b"data: " + data + end + end
            if asked.fault == "buffered":
                held.append(event)
            else:
                await _write(response, event, script.split_bytes)
        if held:
            await response.write(b"".join(held))
    except Dropped:
        if request.transport is not None:
            request.transport.abort()
        return response
    finally:
        state.running -= 1
        state.waiting -= script.queued * long
    await response.write_eof()
    return response


async def _write(response: web.StreamResponse, event: bytes, piece: int) -> None:
    """Write one event, in pieces that reach the other side one by one if the script says so."""
    for start in range(0, len(event), piece or len(event)):
        await response.write(event[start : start + (piece or len(event))])
        if piece:
            await asyncio.sleep(0)


def add_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of the script."""
    parser.add_argument("--port", type=int, required=True)
    for item in fields(MockScript):
        option = "--" + item.name.replace("_", "-")
        choices = CHOICES.get(item.name)
        parser.add_argument(option, type=type(item.default), default=item.default, choices=choices)


def serve(options: argparse.Namespace) -> int:
    """Serve until ended; return the exit status."""
    script = MockScript(**{item.name: getattr(options, item.name) for item in fields(MockScript)})
    try:
        _ = script.chunk_sizes
    except ValueError as error:
        sys.stderr.write(f"harness mock: {error}\n")
        return 2
    if script.refuse:
        sys.stderr.write(f"starting\nerror: {script.refuse}\n")
        return 1
    try:
        # a scripted stall must not hold up the end of the process
        web.run_app(
            _delayed_app(script),
            host="127.0.0.1",
            port=options.port,
            print=None,
            shutdown_timeout=0.1,
            handler_cancellation=True,
        )
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"harness mock: {error}\n")
        return 2
    return 0


async def _delayed_app(script: MockScript) -> web.Application:
    await asyncio.sleep(script.start_delay_ms / 1e3)
    return build_app(script)


if __name__ == "__main__":
    option_parser = argparse.ArgumentParser(description="A scripted stand-in for a server.")
    add_options(option_parser)
    raise SystemExit(serve(option_parser.parse_args()))
