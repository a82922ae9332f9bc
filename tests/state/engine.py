"""SGLang's own pools, allocator and radix tree on the CPU, with SPIN's hooks on them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import torch
from sglang.srt.managers import schedule_policy
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins import hook_registry
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

from sglang_spin.config import SpinConfig
from sglang_spin.core.block import BLOCK
from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hook import Evidence
from sglang_spin.engine.hooks import allocator as allocator_hooks
from sglang_spin.engine.hooks import requests as request_hooks
from sglang_spin.engine.install import apply
from sglang_spin.engine.runtime import Runtime

HOOKS = (*allocator_hooks.HOOKS, allocator_hooks.PLAIN_DECODE, *request_hooks.HOOKS)
WINDOW = 128  # tokens that a sliding-window layer reads
LAYERS = (1, 4)  # engine layer ids that own an indexer
_evidence = Evidence()


class Sizes(NamedTuple):
    """rows: request rows; pages: of 64 entries; context: most tokens of a request; ratio: tokens of
    an entry, 1 as on DeepSeek-V3.2 or 4 as on V4, which has a sliding window, too."""

    rows: int
    pages: int
    context: int
    index_topk: int
    ratio: int = 1

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return BLOCK * self.ratio


class Pools(NamedTuple):
    """What one scheduler process owns."""

    sizes: Sizes
    rows: ReqToTokenPool
    allocator: Any
    tree: UnifiedRadixCache
    runtime: Runtime

    def free_pages(self) -> set[int]:
        """Pages that hold nothing."""
        full: PagedTokenToKVPoolAllocator = self.runtime.allocator
        return set(full.get_all_free_pages().tolist())


@contextmanager
def hooked() -> Iterator[None]:
    """Put SPIN's hooks on SGLang's classes as a scheduler does, and take them off again."""
    registry = hook_registry.HookRegistry
    places = [hook.target.dotted.rpartition(".")[::2] for hook in HOOKS]
    originals = [getattr(pkgutil.resolve_name(owner), name) for owner, name in places]
    apply(HOOKS, _evidence)
    try:
        with (
            mock.patch.object(runtimes, "die", _fail),
            # requests are admitted as if they asked for little: the pool runs full and retracts
            mock.patch.object(schedule_policy, "CLIP_MAX_NEW_TOKENS", 16),
        ):
            yield
    finally:
        for hook, (owner, name), original in zip(HOOKS, places, originals, strict=True):
            holder = pkgutil.resolve_name(owner)
            wrapped = getattr(holder, name)
            setattr(holder, name, original)
            hook_registry._propagate_patch(wrapped, original, holder)
            registry._patched.discard(hook.target.dotted)
            registry._hooks.pop(hook.target.dotted)


def build(sizes: Sizes, config: SpinConfig) -> Pools:
    """Fresh pools, a fresh tree and this process's new SPIN runtime attached to them."""
    set_global_server_args_for_scheduler(
        ServerArgs(model_path="dummy", page_size=sizes.page, device="cpu")
    )
    runtime = runtimes.start(config, HOOKS)
    runtime.evidence = _evidence
    rows = ReqToTokenPool(
        size=sizes.rows, max_context_len=sizes.context, device="cpu", enable_memory_saver=False
    )
    windowed = sizes.ratio > 1
    allocator = _windowed_allocator(sizes) if windowed else _allocator(sizes)
    full = allocator.full_attn_allocator if windowed else allocator
    runtime.attach(_runner(rows, sizes.index_topk), full, list(LAYERS), ratio=sizes.ratio)
    runtime.proven = True  # the proof asks for hooks on a model, and there is none
    kinds = (ComponentType.FULL, ComponentType.SWA) if windowed else (ComponentType.FULL,)
    tree = UnifiedRadixCache(
        params=CacheInitParams(
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
            page_size=sizes.page,
            disable=False,
            tree_components=kinds,
            sliding_window_size=WINDOW if windowed else None,
        )
    )
    assert tree._tree_core_backend == "rust"
    return Pools(sizes, rows, allocator, tree, runtime)


def _allocator(sizes: Sizes) -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(
        sizes.pages * sizes.page, sizes.page, torch.bfloat16, "cpu", None, need_sort=False
    )


def _windowed_allocator(sizes: Sizes) -> SWATokenToKVPoolAllocator:
    size = sizes.pages * sizes.page
    common = {"page_size": sizes.page, "dtype": torch.bfloat16, "device": "cpu"}
    cache = SWAKVPool(
        size,
        size,
        head_num=1,
        head_dim=8,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
        **common,
    )
    return SWATokenToKVPoolAllocator(size, size, kvcache=cache, need_sort=False, **common)


def _runner(rows: Any, index_topk: int) -> SimpleNamespace:
    config = SimpleNamespace(hf_config=SimpleNamespace(index_topk=index_topk))
    return SimpleNamespace(
        device="cpu",
        req_to_token_pool=rows,
        model_config=config,
    )


def _fail(message: str) -> NoReturn:
    """In place of die(), which would end the process that started the tests."""
    raise AssertionError(message)
