"""Request rows: a new owner starts from nothing, and a finished request hands its history on."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target


def _after_alloc_rows(result: list[int] | None, pool: Any, _need_size: int) -> None:
    import torch

    from sglang_spin.engine.events import RowsOpened

    runtime = runtimes.current()
    if not result or pool is not runtime.runner.req_to_token_pool:
        return
    runtime.rows_opened(result)
    rows = torch.tensor(result, dtype=torch.int64).to(pool.device, non_blocking=True)
    runtime.events.put(RowsOpened(rows))


def _around_release(original: Any, req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
    import torch

    from sglang_spin.engine.events import RowClosed

    row = req.kv.req_pool_idx if req.kv.holds_kv else None
    length = req.owned_kv_len() if row is not None else 0
    original(req, tree_cache, checkpoint=checkpoint)
    if row is None or req.kv.holds_kv:
        return
    # read after the call: by then the tree has re-pointed duplicate blocks to the pages it keeps,
    # and the row's table still stands, since nothing has taken the row yet
    table = tree_cache.req_to_token_pool.req_to_token
    block = runtimes.current().block_tokens
    end = length // block * block
    pages = table[row, :end:block].long() // block
    index = torch.tensor([row], dtype=torch.int64).to(table.device, non_blocking=True)
    runtime = runtimes.current()
    runtime.closed += 1
    runtime.events.put(RowClosed(index, pages, length))


HOOKS = (
    Hook(
        Target(
            name="sglang.srt.mem_cache.memory_pool:ReqToTokenPool.alloc_rows",
            expect="089c5e2bd8f6dd1d",
            why="state is per request row; its one callback slot is taken by V4's unified KV",
            drop_when="register_on_alloc_rows accepts several callbacks",
        ),
        How.AFTER,
        _after_alloc_rows,
        Proof.DECODE,
    ),
    Hook(
        Target(
            name="sglang.srt.mem_cache.common:release_kv_cache",
            expect="18164305dcca558b",
            why="the last moment at which a request's row, pages and history still belong together",
            drop_when="SGLang calls back at the end of a request's KV row",
        ),
        How.AROUND,
        _around_release,
        Proof.REUSE,
    ),
)
