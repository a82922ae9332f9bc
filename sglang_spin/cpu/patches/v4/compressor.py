"""The compressors: plans, merging, and writing the merged entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_COMPRESS = "sglang.kernels.ops.attention.dsv4.compress"
_METADATA = "sglang.kernels.ops.attention.dsv4.metadata_kernel"
_DROP = "SGLang's V4 compressors have a CPU path"

TARGETS: tuple[Target, ...] = (
    Target(
        f"{_COMPRESS}:CompressorDecodePlan.generate", "80f06930c6bfb219", "a CUDA kernel", _DROP
    ),
    Target(
        f"{_COMPRESS}:CompressorPrefillPlan.generate", "270f1bcff58126d8", "a CUDA kernel", _DROP
    ),
    Target(f"{_COMPRESS}:compress_forward", "8876654d96e0a6a4", "a CUDA kernel", _DROP),
    Target(f"{_COMPRESS}:compress_norm_rope_store", "331f17d670f896c8", "a CUDA kernel", _DROP),
    Target(f"{_METADATA}:init_compression_metadata", "26036a21bdfc6a11", "a Triton kernel", _DROP),
)


def install() -> None:
    """Replace the plan builders, both compressor kernels and the metadata kernel."""
    import sglang.kernels.ops.attention.dsv4 as package
    import sglang.kernels.ops.attention.dsv4.compress as module
    import sglang.kernels.ops.attention.dsv4.metadata_kernel as metadata
    import sglang.srt.layers.attention.deepseek_v4_backend as backend
    import sglang.srt.layers.attention.dsv4.compressor_v2 as user

    module.CompressorDecodePlan.generate = staticmethod(_decode_plan)
    module.CompressorPrefillPlan.generate = staticmethod(_prefill_plan)
    for holder in (package, module, user):
        holder.compress_forward = _compress
        holder.compress_norm_rope_store = _norm_rope_store
    metadata.init_compression_metadata = _compression_metadata
    backend._init_compression_metadata_triton = _compression_metadata


def _rings(
    ratio: int, req_to_token: Tensor, full_to_state: Tensor, swa_page: int, ring: int, by_row: bool
) -> Any:
    from sglang_spin.cpu.kernels.v4.compress_plan import Rings

    if by_row:
        raise NotImplementedError("the CPU compressor keeps C4 state by page, not by request")
    return Rings(ratio, ring, req_to_token, full_to_state, swa_page)


def _decode_plan(
    compress_ratio: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    full_to_state: Tensor,
    seq_lens: Tensor,
    swa_page_size: int,
    ring_size: int,
    use_req_ring: bool = False,
) -> Any:
    import torch
    from sglang.kernels.ops.attention.dsv4.compress import CompressorDecodePlan

    from sglang_spin.cpu.kernels.v4.compress_plan import decode_plan

    rings = _rings(
        compress_ratio, req_to_token, full_to_state, swa_page_size, ring_size, use_req_ring
    )
    plan = decode_plan(rings, req_pool_indices, seq_lens)
    return CompressorDecodePlan(compress_ratio, plan.view(torch.uint8))


def _prefill_plan(
    compress_ratio: int,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    req_to_token: Tensor,
    full_to_state: Tensor,
    swa_page_size: int,
    ring_size: int,
    num_q_tokens: int,  # noqa: ARG001  upstream's signature
    use_cuda_graph: bool = False,  # noqa: ARG001
    use_req_ring: bool = False,
) -> Any:
    import torch
    from sglang.kernels.ops.attention.dsv4.compress import CompressorPrefillPlan

    from sglang_spin.cpu.kernels.v4.compress_plan import prefill_plans

    rings = _rings(
        compress_ratio, req_to_token, full_to_state, swa_page_size, ring_size, use_req_ring
    )
    merges, writes = prefill_plans(rings, req_pool_indices, seq_lens, extend_lens)
    views = merges.view(torch.uint8), writes.view(torch.uint8)
    return CompressorPrefillPlan(compress_ratio, *views, None)


def _compress(
    kv_score_buffer: Tensor,
    kv_score_input: Tensor,
    ape: Tensor,
    plan: Any,
    *,
    head_dim: int,  # noqa: ARG001  upstream's signature
    compress_ratio: int,
    out: Tensor | None = None,
    is_online: bool = False,
) -> Tensor:
    """Returns one row per merge, in decode one per request, merged or not."""
    import torch

    from sglang_spin.cpu.kernels.v4.compress import merge_windows

    if is_online or out is not None:
        raise NotImplementedError("the CPU compressor keeps whole windows and returns new tensors")
    ring = kv_score_buffer.view(-1, kv_score_buffer.shape[-1])
    words = plan[1].view(torch.int32)
    if not plan.is_decode:
        # the merges read what earlier forwards left, so they come before the writes
        merged = merge_windows(ring, kv_score_input, ape, words, compress_ratio)
        writes = plan.plan_w.view(torch.int32).long()
        ring[writes[:, 1]] = kv_score_input[writes[:, 0]].to(ring.dtype)
        return merged
    ring[words[:, 1].long()] = kv_score_input[: words.shape[0]].to(ring.dtype)
    # the token is in the ring by now, so the whole window is read from there
    reads = words.clone()
    reads[:, 1] = ape.shape[0] << 16
    due = words[:, 0] % compress_ratio == 0
    merged = kv_score_input.new_zeros((words.shape[0], ape.shape[-1]))
    merged[due] = merge_windows(ring, kv_score_input, ape, reads[due], compress_ratio)
    return merged


def _norm_rope_store(
    kv: Tensor,
    plan: Any,
    *,
    norm_weight: Tensor,
    norm_eps: float,
    freq_cis: Tensor,
    out_loc: Tensor,
    kvcache: Tensor,
    page_size: int,
    use_fp4: bool = False,
    bf16_store: bool = False,
    **_gpu_only: Any,
) -> None:
    """Normalise, rotate and quantise the merged entries; of a decode plan only those that are due.

    An entry's position is that of its window's first token.
    """
    import torch

    from sglang_spin.cpu.kernels.hadamard import hadamard
    from sglang_spin.cpu.kernels.index_keys import write_index_keys
    from sglang_spin.cpu.kernels.quantization import quantize_blocks
    from sglang_spin.cpu.kernels.v4.latent_rows import DIM, write_rows
    from sglang_spin.cpu.kernels.v4.norm_rope import normed_rotated

    if use_fp4 or bf16_store:
        raise NotImplementedError("the CPU compressor stores fp8 entries")
    words = plan[1].view(torch.int32)
    if plan.is_decode:
        due = words[:, 0] % plan.compress_ratio == 0
        kv, ends, slots = kv[due], words[due, 0], out_loc[: words.shape[0]][due]
    else:
        ends, slots = words[:, 0], out_loc[(words[:, 1] & 0xFFFF).long()]
    if not kv.shape[0]:
        return
    rows = normed_rotated(kv, norm_weight, norm_eps, freq_cis, ends - plan.compress_ratio)
    pages = kvcache.view(kvcache.shape[0], -1)
    if kv.shape[-1] == DIM:
        write_rows(pages, slots, rows, page_size)
        return
    keys, scales = quantize_blocks(
        hadamard(rows, rows.shape[-1] ** -0.5), rows.shape[-1], power_of_two=False
    )
    write_index_keys(pages, slots, keys, scales, page_size)


def _compression_metadata(
    seq_lens: Tensor,
    positions: Tensor,
    raw_out_loc: Tensor,
    page_table: Tensor,
    page_size: int,
    compute_page_indices: bool = True,
) -> tuple[Tensor | None, ...]:
    """Per ratio 4 and 128: slot to write, position, length, length of at least 1; C128's slots."""
    import torch

    result: list[Tensor | None] = []
    writing = seq_lens[: raw_out_loc.shape[0]]
    for ratio in (4, 128):
        slots = torch.where(writing % ratio == 0, raw_out_loc // ratio, 0).long()
        lengths = (seq_lens // ratio).int()
        result += [slots, (positions - positions % ratio).int(), lengths, lengths.clamp(min=1)]
    if not compute_page_indices:
        return *result, None
    entries = page_size // 128
    columns = torch.arange(entries * page_table.shape[1])
    slots = page_table[:, columns // entries] * entries + (columns % entries).int()
    return *result, torch.where(columns < (seq_lens // 128)[:, None], slots, -1).int()
