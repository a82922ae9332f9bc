"""Scheduler: second stage of the registration, and the proof that start-up reached the hooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sglang_spin.config import from_env
from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.fatal import die
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target


def _around_init(original: Any, scheduler: Any, *args: Any, **kw: Any) -> None:
    from sglang.srt.runtime_context import get_context

    from sglang_spin.engine.hooks import active
    from sglang_spin.engine.install import apply
    from sglang_spin.engine.refusals import first_refusal
    from sglang_spin.engine.telemetry import metric_labels

    options = SimpleNamespace(**get_context().resolved_server_args_dict())
    if refusal := first_refusal(options):
        die(refusal)
    config = from_env()
    speculative = options.speculative_algorithm is not None
    hooks = active(config, options.attention_backend, speculative=speculative)
    runtime = runtimes.start(config, hooks)
    apply(runtime.hooks, runtime.evidence)
    original(scheduler, *args, **kw)
    if runtime.state is None:
        die("the model started no attention backend that SPIN hooks; start it with --no-spin")
    if missing := runtime.evidence.missing(runtime.hooks, Proof.START):
        die(f"{missing[0]} was never reached by {Proof.START.value}: SPIN would be inactive")
    runtime.start_telemetry(metric_labels(scheduler))


SCHEDULER = Hook(
    Target(
        name="sglang.srt.managers.scheduler:Scheduler.__init__",
        expect="451e6fc7ed80c78c",
        why="first code of a scheduler process: GPU modules are hooked there, not in the parent",
        drop_when="plugins get a callback per scheduler process",
    ),
    How.AROUND,
    _around_init,
    Proof.START,
)
