"""Speculative decoding: the small kernels between draft and target, for chains of drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_OPS = "sglang.kernels.ops.speculative"
_ALLOCATION = "sglang.srt.mem_cache.allocation"
_WHEEL = "calls a kernel of the CPU wheel of sgl_kernel, which is not published"
_TRITON = "runs a Triton kernel"
_DROP = "a CPU wheel of sgl_kernel is published"
_FALLBACK = "SGLang offers a torch fallback"

TARGETS: tuple[Target, ...] = (
    Target(f"{_OPS}.spec_tree:build_tree_kernel_efficient_func", "77420dce32b61c1e", _WHEEL, _DROP),
    Target(f"{_OPS}.spec_tree:verify_tree_greedy_func", "c988f7eb3dc6bddc", _WHEEL, _DROP),
    Target(f"{_OPS}.cache_locs:assign_extend_cache_locs_func", "f19977ebdd9c404b", _WHEEL, _DROP),
    Target(
        f"{_OPS}.cache_locs:assign_draft_cache_locs_contiguous_func",
        "08d4722174e8231d",
        _WHEEL,
        _DROP,
    ),
    Target(f"{_OPS}.eagle:fill_bonus_tokens_func", "33177090029bd632", _WHEEL, _DROP),
    Target(f"{_OPS}.eagle:fill_accept_out_cache_loc_func", "9f904176ba6791eb", _WHEEL, _DROP),
    Target(
        f"{_OPS}.reconstruct_tree:reconstruct_indices_from_tree_mask_func",
        "12dcd528707d9762",
        _WHEEL,
        _DROP,
    ),
    Target(
        "sglang.kernels.ops.attention.pad:seqlens_expand_triton",
        "8160c2b5f7e6aae8",
        _TRITON,
        _FALLBACK,
    ),
    Target(f"{_ALLOCATION}:assign_req_to_token_pool_func", "b7c471aa138348f4", _WHEEL, _DROP),
    Target(f"{_ALLOCATION}:get_last_loc", "46c6b1c96c8358aa", _TRITON, _FALLBACK),
    Target(
        "sglang.srt.models.deepseek_v2:DeepseekV2ForCausalLM.set_embed_and_head",
        "53cf5ccc5b2e3b7e",
        "waits for torch.cuda after the draft model took the target's embedding",
        "it asks the device module instead",
    ),
)


def install() -> None:
    """Replace each kernel where its caller has imported it."""
    import sglang.kernels.ops.speculative.cache_locs as cache_locs
    import sglang.kernels.ops.speculative.eagle as eagle
    import sglang.kernels.ops.speculative.reconstruct_tree as reconstruct
    import sglang.kernels.ops.speculative.spec_tree as spec_tree
    import sglang.srt.layers.attention.dsa_backend as backend
    import sglang.srt.mem_cache.allocation as allocation
    import torch

    spec_tree.sgl_build_tree_kernel_efficient_cpu = _build_tree
    spec_tree.sgl_verify_tree_greedy_cpu = _verify
    reconstruct.reconstruct_indices_from_tree_mask = _read_tree
    cache_locs.assign_extend_cache_locs_cpu = _read_slots
    cache_locs.assign_draft_cache_locs_contiguous_cpu = _read_draft_slots
    allocation.assign_req_to_token_pool_cpu = _write_slots
    allocation.get_last_loc_triton = allocation.get_last_loc_torch
    eagle.fill_bonus_tokens_cpu = _fill_bonus
    eagle.fill_accept_out_cache_loc_cpu = _fill_accepted
    backend.seqlens_expand_triton = _expand_lengths
    torch.cuda.synchronize = _nothing_to_wait_for


def _nothing_to_wait_for(device: object = None) -> None:
    """Where there is no GPU."""


def _build_tree(
    _parents: Tensor,
    _selected: Tensor,
    seq_lens: Tensor,
    mask: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    topk: int,
    _depth: int,
    _drafts: int,
    mask_mode: int,
) -> None:
    from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode

    from sglang_spin.cpu.kernels.draft_tokens import write_chain

    if topk != 1 or mask_mode != TreeMaskMode.QLEN_ONLY:
        raise NotImplementedError("the CPU engine drafts chains: --speculative-eagle-topk 1")
    write_chain(seq_lens, mask, positions, index, next_token, next_sibling)


def _read_tree(
    mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    _requests: int,
    _drafts: int,
) -> None:
    from sglang_spin.cpu.kernels.draft_tokens import read_mask

    read_mask(mask, seq_lens, positions, index, next_token, next_sibling)


def _verify(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,  # upstream's spelling
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    from sglang_spin.cpu.kernels.draft_tokens import accept_greedily

    accept_greedily(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        target_predict,
    )


def _read_slots(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, out: Tensor, _width: int
) -> None:
    from sglang_spin.cpu.kernels.draft_tokens import read_slots

    read_slots(rows, table, start, end, out)


def _read_draft_slots(
    rows: Tensor, table: Tensor, start: Tensor, out: Tensor, _width: int, topk: int, columns: int
) -> None:
    from sglang_spin.cpu.kernels.draft_tokens import read_slots

    read_slots(rows, table, start, start + topk * columns, out)


def _write_slots(
    rows: Tensor, table: Tensor, start: Tensor, end: Tensor, slots: Tensor, _width: int
) -> None:
    from sglang_spin.cpu.kernels.draft_tokens import write_slots

    write_slots(rows, table, start, end, slots)


def _fill_bonus(tokens: Tensor, accepted: Tensor, bonus: Tensor, stride: int) -> None:
    import torch

    last = torch.arange(accepted.numel()) * stride + accepted.long() - 1
    bonus.copy_(tokens.flatten()[last])


def _fill_accepted(accept_index: Tensor, slots: Tensor, out: Tensor) -> None:
    rows = accept_index[accept_index >= 0].long()
    out[: rows.numel()] = slots[rows]


def _expand_lengths(counts: Tensor, lengths: Tensor, total: int, _most: int) -> Tensor:
    """Lengths of each request's rows: the last of its `counts` rows has its `lengths` entries."""
    import torch

    first = (lengths - counts).repeat_interleave(counts, output_size=total)
    within = torch.arange(total) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return (first + within + 1).to(torch.int32)
