"""One module per upstream target; ALL is the ledger of what SPIN hooks in a scheduler process."""

from sglang_spin.config import SpinConfig
from sglang_spin.engine.hook import Hook
from sglang_spin.engine.hooks import allocator, backend, requests, runner, scorer, status

ALL: tuple[Hook, ...] = (
    *backend.HOOKS,
    *requests.HOOKS,
    *allocator.HOOKS,
    *runner.HOOKS,
    *scorer.HOOKS,
    *status.HOOKS,
)


def active(config: SpinConfig) -> tuple[Hook, ...]:
    """The hooks that a server with these options installs."""
    unused = () if config.scorer == "fused" else scorer.HOOKS
    return tuple(hook for hook in ALL if hook not in unused)
