"""A plugin for the metrics test: the miss of every audit, from the top-k that the engine returns.

The file named by `AUDIT_PROBE_FILE` receives one line per layer and audited row: the layer's place,
the entries that the engine selected, those of them in blocks that the prediction would have
skipped. Pages are looked up in the engine's own page table, not in SPIN's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FILE = "AUDIT_PROBE_FILE"
PAGE = 64


def write_plugin(folder: Path) -> None:
    """Make `folder`, once on PYTHONPATH, an installed distribution whose plugin is this module."""
    info = folder / "audit_probe-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: audit-probe\nVersion: 1\n")
    entry = f"audit_probe = {__name__}:register"
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry}\n")


def read(path: Path, layers: int) -> list[tuple[int, int, int]]:
    """Audits, selected entries and missed entries of each layer."""
    lines = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    chosen = [[line for line in lines if line[0] == layer] for layer in range(layers)]
    return [(len(c), sum(n for _, n, _ in c), sum(m for _, _, m in c)) for c in chosen]


def register() -> None:
    """Wrap the metadata when the scheduler has started: SGLang imports the indexer only then."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", _wrap, HookType.AFTER)


def _wrap(*_args: Any, **_options: Any) -> None:
    from sglang_spin.engine import dsa

    original = dsa.SpinIndexerMetadata.topk_transform

    def topk_transform(metadata: Any, logits: Any, topk: int, **options: Any) -> Any:
        slots = original(metadata, logits, topk, **options)
        _note(metadata, slots)
        return slots

    dsa.SpinIndexerMetadata.topk_transform = topk_transform  # type: ignore[method-assign]


def _note(metadata: Any, slots: Any) -> None:
    plan, runtime = metadata.spin_plan, metadata.spin_runtime
    layer = runtime.layer_slots[metadata.spin_layer]
    table = runtime.runner.req_to_token_pool.req_to_token
    lines = []
    for row in plan.flags.audited.nonzero().flatten().tolist():
        owner = int(plan.request_rows[row])
        length = int(plan.lengths[layer, row])
        block_of = {int(table[owner, p]) // PAGE: p // PAGE for p in range(0, length, PAGE)}
        selected = [block_of[slot // PAGE] for slot in slots[row].tolist() if slot >= 0]
        missed = sum(not int(plan.flags.blocks[layer, row, block]) & 1 for block in selected)
        lines.append(f"{layer} {len(selected)} {missed}\n")
    with Path(os.environ[FILE]).open("a") as sink:
        sink.writelines(lines)
