"""One hook on one upstream target, and the proof that it has fired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sglang_spin.engine.ledger import Target

Handler = Callable[..., Any]


class How(Enum):
    """How a handler meets its target, by the names of SGLang's HookType."""

    BEFORE = "BEFORE"
    AFTER = "AFTER"
    AROUND = "AROUND"


class Proof(Enum):
    """By when a hook must have fired, or the server is stopped."""

    START = "the end of Scheduler.__init__"
    DECODE = "the end of the first decode step"
    REUSE = "the first reuse of a request row"
    RARE = "never: nothing in plain serving has to call it"


@dataclass(frozen=True, slots=True)
class Hook:
    """A ledger entry with its handler.

    BEFORE handlers return None or (args, kwargs); AFTER handlers get the result first and return
    None to keep it; AROUND handlers get the original first.
    """

    target: Target
    how: How
    handler: Handler
    proof: Proof


class Evidence:
    """Which targets have been reached in this process."""

    def __init__(self) -> None:
        self.fired: set[str] = set()

    def witnessed(self, hook: Hook) -> Handler:
        """The handler, noting that it was called."""

        def handler(*args: Any, **kwargs: Any) -> Any:
            self.fired.add(hook.target.name)
            return hook.handler(*args, **kwargs)

        return handler

    def missing(self, hooks: tuple[Hook, ...], proof: Proof) -> list[str]:
        """Targets due at `proof` that no call has reached."""
        return [
            h.target.name for h in hooks if h.proof is proof and h.target.name not in self.fired
        ]
