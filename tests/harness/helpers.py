"""Records, specs and mock servers for the harness tests."""

import json
from array import array
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import ClientSession, web

from harness.client import open_session
from harness.mock import STATE, build_app
from harness.mock_script import MockScript, MockState
from harness.ports import free_port
from harness.record import RequestRecord
from harness.spec import Spec

MS = 1_000_000
T = TypeVar("T")


def record(chunks: Sequence[tuple[float, int]], **values: Any) -> RequestRecord:
    """A sound record with chunks given as (arrival in ms, tokens); other fields by name."""
    made = RequestRecord(
        index=0,
        chunk_t_ns=array("q", [round(t * MS) for t, _ in chunks]),
        chunk_tokens=array("q", [n for _, n in chunks]),
        itl_basis="usage",
        completion_tokens=sum(n for _, n in chunks),
        finish_reason="length",
        saw_done=True,
    )
    for name, value in values.items():
        setattr(made, name, value)
    return made


def spec_dict(*, stock: str = "", spin: str = "", **changes: Any) -> dict[str, Any]:
    """A small two-arm spec over mock servers; `stock` and `spin` are further mock options."""
    command = "python -m harness.mock --port {port} --itl-ms 8 "
    made: dict[str, Any] = {
        "name": "test",
        "pairs": 1,
        "workload": {
            "cached_tokens": 256,
            "new_tokens": 32,
            "output_tokens": 12,
            "concurrency": 2,
            "sharing": "shared",
        },
        "arms": {
            "stock": {"command": command + stock},
            "spin": {
                "command": command + "--spin-target 0.4 " + spin,
                "spin": {"target_sparsity": 0.4},
            },
        },
        "warmup": {"prompt_tokens": 64, "output_tokens": 4, "max_rounds": 2},
        # a busy test machine must not decide about validity
        "limits": {"loop_lag_share": 1000, "instant_gap_share": 1, "stall_s": 20, "start_s": 60},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] |= value
        else:
            made[key] = value
    return made


def make_spec(**changes: Any) -> Spec:
    """The same as a checked spec."""
    return Spec.model_validate(spec_dict(**changes))


def write_spec(folder: Path, **changes: Any) -> Path:
    """The same as a file."""
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec_dict(**changes), sort_keys=False))
    return path


async def with_mock(
    script: MockScript, use: Callable[[ClientSession, MockState], Awaitable[T]]
) -> T:
    """Run `use` against a mock server in this process."""
    app = build_app(script)
    return await with_app(app, lambda session: use(session, app[STATE]))


async def with_app(app: web.Application, use: Callable[[ClientSession], Awaitable[T]]) -> T:
    """Run `use` against any aiohttp application."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with open_session(f"http://127.0.0.1:{port}") as session:
            return await use(session)
    finally:
        await runner.cleanup()


def read_summary(folder: Path) -> dict[str, Any]:
    """The newest summary."""
    text = (folder / "results" / "test" / "latest" / "summary.json").read_text()
    summary: dict[str, Any] = json.loads(text)
    return summary


def processes_with(mark: str) -> list[int]:
    """Processes whose command line holds the mark."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
