"""The ledger of everything the CPU engine changes in SGLang, and how it is put in place.

Two steps, because importing SGLang's attention code costs seconds that the server's front process
need not spend: platform answers at once in every process, kernels when a scheduler is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_spin.cpu.patches import (
    attention,
    host_cache,
    index_cache,
    indexer,
    platform,
    rope,
    speculative,
    topk,
    v4,
)

if TYPE_CHECKING:
    from sglang_spin.engine.ledger import Target

_KERNEL_PATCHES = (
    indexer,
    index_cache,
    topk,
    attention,
    speculative,
    rope,
    host_cache,
    *v4.MODULES,
)

PATCHES: tuple[Target, ...] = (
    *platform.TARGETS,
    *v4.chat.TARGETS,
    *(target for module in _KERNEL_PATCHES for target in module.TARGETS),
)


def register() -> None:
    """Install the platform answers now and arrange for the kernels to follow."""
    platform.install()
    platform.before_scheduler(install_kernels)
    v4.chat.register()


def install_kernels() -> None:
    """Put every kernel in place in this process. Needs no scheduler: tests call it directly."""
    for module in _KERNEL_PATCHES:
        module.install()
