"""/server_info: what SPIN did, so that a client can see that it was on."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target, is_patched

_MODULE = "sglang.srt.managers.scheduler_components.internal_state"


def _after_state(result: Any, _controller: Any, _request: Any) -> None:
    from sglang.srt.runtime_context import get_parallel

    # one reply per attention-DP rank, from the first of its TP ranks; the others keep the same
    parallel = get_parallel()
    rank = {"attn_dp_rank": parallel.attn_dp_rank, "tp_rank": parallel.tp_rank}
    by = {"attached_by": "callbacks" if is_patched(HOOKS[0].target.name) else "hooks"}
    result.internal_state["spin"] = rank | by | runtimes.current().report()


HOOKS = (
    Hook(
        Target(
            name=f"{_MODULE}:SchedulerInternalStateController.get_internal_state",
            expect="3135852beceb46c3",
            why="/server_info has no registry of contributors",
            drop_when="plugins can add to the internal state",
        ),
        How.AFTER,
        _after_state,
        Proof.RARE,
    ),
)
