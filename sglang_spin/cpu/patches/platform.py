"""Questions about the GPU that SGLang asks while it resolves options and builds the DSA backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_spin.engine.ledger import Target

HOPPER = (9, 0)  # its choices are the plainest: bf16 cache, flashmla_sparse prefill, fa3 decode

_SCHEDULER = Target(
    name="sglang.srt.managers.scheduler:Scheduler.__init__",
    expect="451e6fc7ed80c78c",
    why="kernels are installed when a scheduler starts, so other processes import nothing heavy",
    drop_when="SGLang calls plugins once per process role",
)

_ASKS = "asks torch.cuda for the compute capability, on every device"
_PLATFORM = "SGLang's DSA options ask get_platform() instead of torch.cuda"
_OPTIONS = "sglang.srt.arg_groups.overrides"

TARGETS: tuple[Target, ...] = (
    Target(f"{_OPTIONS}:_dsa_kv_cache_dtype_default", "f1f20d3946c8e22e", _ASKS, _PLATFORM),
    Target(f"{_OPTIONS}:_dsa_split_backend_resolution", "ec164896670f9f34", _ASKS, _PLATFORM),
    _SCHEDULER,
)


def install() -> None:
    """Answer the compute capability of a Hopper GPU."""
    import torch

    torch.cuda.get_device_capability = _capability


def _capability(device: object = None) -> tuple[int, int]:  # noqa: ARG001  torch's signature
    return HOPPER


def before_scheduler(action: Callable[[], None]) -> None:
    """Run `action` before the process creates its scheduler."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def hook(*_args: Any, **_options: Any) -> None:
        action()

    HookRegistry.register(_SCHEDULER.dotted, hook, HookType.BEFORE)
