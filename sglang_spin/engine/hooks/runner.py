"""ModelRunner: apply the scheduler's events before a forward, and prove engagement after it."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target


def _around_forward(original: Any, runner: Any, forward_batch: Any, *args: Any, **kw: Any) -> Any:
    runtime = runtimes.current()
    if runner is not runtime.runner or runtime.state is None:
        return original(runner, forward_batch, *args, **kw)
    runtime.events.drain(runtime.state)
    result = original(runner, forward_batch, *args, **kw)
    mode = forward_batch.forward_mode
    decoded = mode.is_decode() or mode.is_target_verify()
    if decoded and not _ran_as_prefill(forward_batch):
        runtime.prove_decode()
        runtime.after_decode()
    return result


def _ran_as_prefill(forward_batch: Any) -> bool:
    """Whether attention DP ran these decode rows inside another rank's prefill.

    The engine may relabel them for the padded shape of a prefill graph, and restores the mode after
    the forward. Such a step is scored in full, and its rows fold when they decode again.
    """
    return forward_batch._original_forward_mode is not None


HOOKS = (
    Hook(
        Target(
            name="sglang.srt.model_executor.model_runner:ModelRunner._forward_raw",
            expect="bdd3329df0fa820d",
            why="on the forward stream, before graph replay: the state changes hands in order",
            drop_when="SGLang offers a per-forward callback outside the recorded region",
        ),
        How.AROUND,
        _around_forward,
        Proof.DECODE,
    ),
)
