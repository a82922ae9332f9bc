"""Attaching handlers: to the seams of a patched SGLang (patches/), else to its hook registry."""

from __future__ import annotations

from importlib import import_module

from sglang_spin.engine.hook import Handler, Hook
from sglang_spin.engine.ledger import is_patched


def attach(hook: Hook, handler: Handler) -> None:
    """Register a handler; hooks take effect when SGLang applies them, seams at once."""
    name = hook.target.name
    if is_patched(name):
        from sglang.srt.plugins import seams

        seams.attach(name, hook.how.value, handler)
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(hook.target.dotted, handler, HookType[hook.how.value])


def is_attached(hook: Hook) -> bool:
    """Whether the handler of an applied hook can be reached. Imports the target's module."""
    name = hook.target.name
    if is_patched(name):
        from sglang.srt.plugins import seams

        import_module(name.partition(":")[0])
        return bool(seams.is_declared(name))
    from sglang.srt.plugins.hook_registry import HookRegistry

    return hook.target.dotted in HookRegistry._patched
