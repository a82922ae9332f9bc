"""Putting hooks into SGLang's registry, in two stages.

Stage one, in every process that loads plugins: check the whole ledger, hook the scheduler's start
and the validation of options. Stage two, inside Scheduler.__init__: hook the modules that import
GPU code. SGLang logs and survives whatever fails while it applies hooks, so each step is verified.
"""

from __future__ import annotations

from typing import Any

from sglang_spin.engine.attach import attach, is_attached
from sglang_spin.engine.fatal import die
from sglang_spin.engine.hook import Evidence, Hook
from sglang_spin.engine.hooks import ALL, RELIED_ON
from sglang_spin.engine.hooks.scheduler import SCHEDULER
from sglang_spin.engine.ledger import Target, require
from sglang_spin.engine.model_refusals import model_refusal
from sglang_spin.engine.refusals import first_refusal

TARGETS: tuple[Target, ...] = (
    SCHEDULER.target,
    *(hook.target for hook in ALL),
    *RELIED_ON,
    Target(
        name="sglang.srt.arg_groups.model_override_base:model_config_of",
        expect="0d6c09285fbb1cb5",
        why="models are refused by their config before anything is loaded",
        drop_when="validation hooks are given the model's config",
    ),
)


def register_stage_one() -> None:
    """Check the ledger and register what every process needs. Raises PatchDrift."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    require(TARGETS)
    attach(SCHEDULER, SCHEDULER.handler)
    register_resolution_hook("handle_other_validations")(_refuse_options)


def apply(hooks: tuple[Hook, ...], evidence: Evidence) -> None:
    """Register the hooks and apply them at once; end the process if one did not take."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    for hook in hooks:
        attach(hook, evidence.witnessed(hook))
    HookRegistry.apply_hooks()
    for hook in hooks:
        if not is_attached(hook):
            die(f"{hook.target.name} could not be hooked (see the log): SPIN would be inactive")


def _refuse_options(server_args: Any, previous: Any) -> None:
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.arg_groups.overrides import resolving_view

    # the last moment in the front process: what SGLang failed to hook there it only logged
    if not is_attached(SCHEDULER):
        raise SystemExit(f"sglang_spin: {SCHEDULER.target.name} could not be hooked (see the log)")
    previous(server_args)
    # the model first: what it implies (a page size, a backend) would be a less telling reason
    refusal = model_refusal(model_config_of(server_args).hf_config)
    if refusal := refusal or first_refusal(resolving_view(server_args)):
        raise SystemExit(f"sglang_spin: {refusal}")
