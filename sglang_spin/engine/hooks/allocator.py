"""The page allocator: a page that gets new content must not hand on the old one's history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Hook, How, Proof
from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_CLASS = "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"
_WHY = "pages are reused at once and by number; the prior is kept by page number"
_DROP = "the allocator calls back with the pages it hands out"


def _after_alloc(result: Tensor | None, allocator: Any, *_args: Any, **_kw: Any) -> None:
    import torch

    from sglang_spin.engine.events import PagesTaken

    runtime = runtimes.current()
    if result is None or runtime.state is None or allocator is not runtime.allocator:
        return
    # a location at a page's start means that the page is newly taken; others continue a page.
    # masked, not filtered: a filtered shape would make the device wait
    size = allocator.page_size
    starts = result % size == 0
    pages = torch.where(starts, result // size, runtime.state.shape.pages)
    runtime.events.put(PagesTaken(pages))


def _after_alloc_decode(result: Tensor | None, allocator: Any, *args: Any, **kw: Any) -> None:
    _after_alloc(result, allocator, *args, **kw)
    runtimes.current().decode_allocated()


def _after_clear(_result: None, allocator: Any) -> None:
    from sglang_spin.engine.events import CacheFlushed

    runtime = runtimes.current()
    if allocator is runtime.allocator:
        runtime.events.put(CacheFlushed())


def _after_alloc_spec(_result: None, *_args: Any, **_kw: Any) -> None:
    # its pages come from alloc_extend; this only counts decode steps
    runtimes.current().decode_allocated()


HOOKS = (
    Hook(
        Target(name=f"{_CLASS}.alloc", expect="c2497822b1b16e0a", why=_WHY, drop_when=_DROP),
        How.AFTER,
        _after_alloc,
        Proof.RARE,
    ),
    Hook(
        Target(name=f"{_CLASS}.alloc_extend", expect="8da77d70105b0dea", why=_WHY, drop_when=_DROP),
        How.AFTER,
        _after_alloc,
        Proof.DECODE,
    ),
    Hook(
        Target(name=f"{_CLASS}.clear", expect="2903ff12aeb967b0", why=_WHY, drop_when=_DROP),
        How.AFTER,
        _after_clear,
        Proof.START,
    ),
)

# a decode step takes its pages from one of these; the other is never called
PLAIN_DECODE = Hook(
    Target(name=f"{_CLASS}.alloc_decode", expect="1db9fa2701979abf", why=_WHY, drop_when=_DROP),
    How.AFTER,
    _after_alloc_decode,
    Proof.DECODE,
)
SPECULATIVE_DECODE = Hook(
    Target(
        name="sglang.srt.mem_cache.allocation:alloc_for_spec_decode",
        expect="5a79c37971ec89a0",
        why="a witness of verify steps besides the forward hook, which cannot report its absence",
        drop_when="SGLang offers a per-forward callback outside the recorded region",
    ),
    How.AFTER,
    _after_alloc_spec,
    Proof.DECODE,
)
