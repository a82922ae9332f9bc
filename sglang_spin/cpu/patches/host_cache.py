"""HiCache: pages between the device pool and the host pool, both of which are plain memory here.

Served with `--hicache-io-backend=direct --hicache-mem-layout=layer_first`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_HOST = "sglang.srt.mem_cache.pool_host"
_MLA = f"{_HOST}.mla:MLATokenToKVPoolHost"
_INDEXER = f"{_HOST}.dsa:DSAIndexerPoolHost"
_COPY = "copies pages with sgl_kernel.kvcacheio.transfer_kv_direct, imported with CUDA only"
_DROP_COPY = "SGLang offers a torch form of transfer_kv_direct"

TARGETS: tuple[Target, ...] = (
    Target(
        f"{_HOST}.common:_cuda_host_register",
        "5da1d347c78e74a0",
        "pins host memory through cudart",
        "SGLang pins host memory only where there is a CUDA device",
    ),
    Target(f"{_MLA}.load_to_device_per_layer", "6877e89be9a9aabe", _COPY, _DROP_COPY),
    Target(f"{_MLA}.backup_from_device_all_layer", "b944e1ad448c3502", _COPY, _DROP_COPY),
    Target(f"{_INDEXER}.load_to_device_per_layer", "723ccf95b0323856", _COPY, _DROP_COPY),
    Target(f"{_INDEXER}.backup_from_device_all_layer", "061f592e68dd8333", _COPY, _DROP_COPY),
)


def install() -> None:
    """Give the copies their kernel, and torch's CPU streams what CUDA's have."""
    import torch
    from sglang.srt.mem_cache.pool_host import common, dsa, mla

    common._cuda_host_register = _pin
    for module in (mla, dsa):
        module.transfer_kv_direct = _copy
    # everything runs at once, so a stream has nothing left to wait for
    stream: Any = torch.cpu.Stream
    tensor: Any = torch.Tensor
    stream.synchronize = lambda _stream: None
    stream.query = lambda _stream: True
    tensor.record_stream = lambda _tensor, _stream: None


def _pin(buffer: Tensor, registration_granularity_bytes: int | None = None) -> None:
    """Host memory needs no pinning."""


def _copy(
    src_layers: list[Tensor],
    dst_layers: list[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,  # noqa: ARG001  indices name every entry
) -> None:
    source, target = src_indices.long().cpu(), dst_indices.long().cpu()
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[target] = src[source]
