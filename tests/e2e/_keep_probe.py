"""A plugin for the rank tests: writes down what every rank of a real engine keeps, step by step.

Each scheduler process appends to `<KEEP_PROBE>/<tp rank>.jsonl`, one line per decode step that has
a real row: {"rows": request rows, "lengths": entries of each, "compact": compact lengths,
"pages": per layer and row, the kept pages, "blocks": the same as logical blocks}.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER = "KEEP_PROBE"
BLOCK = 64


def steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank wrote, in order."""
    lines = (folder / f"{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def register() -> None:
    """Wrap SPIN's step in the scheduler processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.__init__", _wrap_step, HookType.BEFORE
    )


def _wrap_step(*_args: Any, **_options: Any) -> None:
    from sglang.srt.runtime_context import get_parallel

    from sglang_spin.engine.runtime import Runtime

    original = Runtime.begin

    def begin(self: Runtime, page_table: Any, lengths: Any, request_rows: Any, *verify: Any) -> Any:
        plan = original(self, page_table, lengths, request_rows, *verify)
        real = [i for i, row in enumerate(request_rows.tolist()) if row]
        if real:
            path = Path(os.environ[FOLDER]) / f"{get_parallel().tp_rank}.jsonl"
            with path.open("a") as sink:
                sink.write(json.dumps(_record(plan, lengths, request_rows, real)) + "\n")
        return plan

    Runtime.begin = begin  # type: ignore[method-assign]


def _record(plan: Any, lengths: Any, request_rows: Any, real: list[int]) -> dict[str, Any]:
    kept = [-(-length // BLOCK) for length in plan.lengths[0].tolist()]

    def chosen(table: Any) -> list[list[list[int]]]:
        return [[layer[row][: kept[row]] for row in real] for layer in table.tolist()]

    return {
        "rows": [request_rows[i].item() for i in real],
        "lengths": [lengths[i].item() for i in real],
        "compact": [plan.lengths[0, i].item() for i in real],
        "pages": chosen(plan.pages),
        "blocks": chosen(plan.blocks),
    }
