"""The validity checklist of the report: what was checked, and whether it held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# what a problem's first word says it is about, in the order of the phases
_CHECKS = {
    "flush": "The prefix cache was emptied before each priming",
    "warm up": "The server answered its warm-up (whether it became steady: see the notes)",
    "prime": "Contexts were not in the cache before priming",
    "verify": "Every context was in the cache, exact to the page",
    "quiesce": "Nothing else ran when the load began",
    "failed": "Every request ended as asked: length reached, [DONE] received, no error",
    "prompt_tokens": "Prompt lengths are the spec's, by the server's usage",
    "completion_tokens": "Output lengths are the spec's, by the server's usage",
    "streamed tokens": "Every token was seen to arrive",
    "cached_tokens": "Cached tokens of every request are what the spec says",
    "spin": "SPIN ran where the spec says so, at its sparsity, and nowhere else",
    "metrics": "The server's counters agree with its replies; nothing was retracted or evicted, "
    "nothing queued in a full batch",
    "window": "There is a window in which all streams decode",
    "implausible": "Replies were not buffered on their way",
    "client_limited": "The client was not the limit",
    "itl_basis": "All arms count tokens in the same way",
}
_OTHER = "Nothing else went wrong: servers stayed up, every run was done"


@dataclass(frozen=True)
class Check:
    """One line of the list. found: the problems that speak against it; state: ok, failed, or
    not checked."""

    text: str
    found: tuple[str, ...]
    state: str


def checklist(summary: Mapping[str, Any]) -> list[Check]:
    """All checks, each with the reasons that belong to it; every reason appears once."""
    by_check: dict[str, list[str]] = {name: [] for name in _CHECKS}
    other: list[str] = []
    for reason in summary["invalid_reasons"]:
        by_check.get(_about(reason, summary), other).append(reason)
    listed = [(name, text, by_check[name]) for name, text in _CHECKS.items()]
    listed.append(("", _OTHER, other))
    return [Check(text, tuple(found), _state(name, found, summary)) for name, text, found in listed]


def _state(name: str, found: Sequence[str], summary: Mapping[str, Any]) -> str:
    if found:
        return "failed"
    unproved = name == "metrics" and any("metrics: not checked" in n for n in summary["notes"])
    return "not checked" if unproved or not summary["runs"] else "ok"


def _about(reason: str, summary: Mapping[str, Any]) -> str:
    """The word before the first colon, after the run's label if there is one."""
    head, _, rest = reason.partition(": ")
    labels = {f"pair {run['pair'] + 1} {run['arm']}" for run in summary["runs"]}
    return rest.partition(":")[0] if head in labels else head
