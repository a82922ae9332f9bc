"""Requests and whole runs against the scripted server, for the traps of load generators."""

import asyncio
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from aiohttp import ClientSession

from harness.client import stream_completion
from harness.control import server_facts
from harness.mock_script import MockScript, MockState
from harness.phases import run_arm
from harness.progress import Progress
from harness.record import RequestRecord
from harness.runcontext import RunContext
from harness.runrecord import ArmRun
from harness.validity import request_problems
from harness.wire import COMPLETIONS, WIRES, Wire
from tests.harness.helpers import make_spec, with_mock

PROMPT, OUTPUT = 100, 12


def bodies(
    count: int, wire: Wire = COMPLETIONS, prompt: int = PROMPT, output: int = OUTPUT
) -> list[bytes]:
    """Bodies with different prompts."""
    ids = np.arange(prompt, dtype=np.int64)
    return [wire.body("mock", ids + index, output) for index in range(count)]


async def stream_all(
    session: ClientSession, payload: Sequence[bytes], stall_s: float = 30
) -> list[RequestRecord]:
    """All bodies at once; a record each."""
    records = [RequestRecord(index=index) for index in range(len(payload))]
    await asyncio.gather(
        *(
            stream_completion(session, body, record, stall_s)
            for body, record in zip(payload, records, strict=True)
        )
    )
    return records


def streamed(
    count: int = 1,
    *,
    wire: str = "completions",
    stall_s: float = 30,
    output: int = OUTPUT,
    **script: Any,
) -> list[RequestRecord]:
    """Records of requests to a mock with this script; nothing of them is in its cache."""
    made = MockScript(**{"page_size": 1000, **script})
    payload = bodies(count, WIRES[wire], output=output)

    async def use(session: ClientSession, _: MockState) -> list[RequestRecord]:
        return await stream_all(session, payload, stall_s)

    return asyncio.run(with_mock(made, use))


def problems(records: Sequence[RequestRecord], cached: int = 0) -> str:
    """The problems of requests sent by `streamed`."""
    found = request_problems(
        records, prompt_tokens=PROMPT, output_tokens=OUTPUT, expected_cached=cached
    )
    return "\n".join(found)


def whole_run(
    arm: str = "stock",
    *,
    spec: dict[str, Any] | None = None,
    meanwhile: Callable[[MockState], Awaitable[None]] | None = None,
    wire: str = "completions",
    **script: Any,
) -> ArmRun:
    """All phases of one run against a mock; `meanwhile` runs beside it."""
    made = make_spec(**(spec or {}))
    run = ArmRun(arm=arm, pair=0, position=0)

    async def use(session: ClientSession, state: MockState) -> None:
        facts = replace(await server_facts(session), wire=WIRES[wire])
        context = RunContext(made, session, facts, Progress(io.StringIO()))
        beside = asyncio.ensure_future(meanwhile(state)) if meanwhile else None
        await run_arm(context, run)
        if beside is not None:
            beside.cancel()

    asyncio.run(with_mock(MockScript(**{"itl_ms": 4, **script}), use))
    return run
