"""One module per upstream target; ALL is the ledger of what SPIN hooks in a scheduler process."""

from sglang_spin.config import SpinConfig
from sglang_spin.engine.hook import Hook
from sglang_spin.engine.hooks import (
    allocator,
    backend,
    logits,
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
    *logits.HOOKS,
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
    dsa = attention_backend == "dsa"
    unused: tuple[Hook, ...] = v4.HOOKS if dsa else backend.HOOKS
    if not dsa or not logits.by_callback():
        unused += logits.HOOKS
    unused += (allocator.PLAIN_DECODE if speculative else allocator.SPECULATIVE_DECODE,)
    if config.scorer != "fused":
        unused += scorer.HOOKS
    return tuple(hook for hook in ALL if hook not in unused)
