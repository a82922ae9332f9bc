"""One module per upstream target; ALL is the ledger of what SPIN hooks in a scheduler process."""

from sglang_spin.config import SpinConfig
from sglang_spin.engine.hook import Hook
from sglang_spin.engine.hooks import (
    allocator,
    backend,
    metrics,
    requests,
    runner,
    scorer,
    status,
    v4,
)
from sglang_spin.engine.ledger import Target

ALL: tuple[Hook, ...] = (
    *backend.HOOKS,
    *v4.HOOKS,
    *requests.HOOKS,
    *allocator.HOOKS,
    allocator.PLAIN_DECODE,
    allocator.SPECULATIVE_DECODE,
    *runner.HOOKS,
    *metrics.HOOKS,
    *scorer.HOOKS,
    *status.HOOKS,
)


RELIED_ON: tuple[Target, ...] = (
    *backend.RELIED_ON,
    *v4.RELIED_ON,
    *metrics.RELIED_ON,
)


def active(
    config: SpinConfig, attention_backend: str = "dsa", *, speculative: bool = False
) -> tuple[Hook, ...]:
    """The hooks that a server with these options installs."""
    unused: tuple[Hook, ...] = v4.HOOKS if attention_backend == "dsa" else backend.HOOKS
    unused += (allocator.PLAIN_DECODE if speculative else allocator.SPECULATIVE_DECODE,)
    if config.scorer != "fused":
        unused += scorer.HOOKS
    return tuple(hook for hook in ALL if hook not in unused)
