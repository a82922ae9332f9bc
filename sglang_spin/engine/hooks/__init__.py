"""One module per upstream target; ALL is the ledger of what SPIN hooks in a scheduler process."""

from sglang_spin.engine.hook import Hook
from sglang_spin.engine.hooks import allocator, backend, requests, runner, status

ALL: tuple[Hook, ...] = (
    *backend.HOOKS,
    *requests.HOOKS,
    *allocator.HOOKS,
    *runner.HOOKS,
    *status.HOOKS,
)
