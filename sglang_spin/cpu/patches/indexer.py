"""The indexer: its CUDA control flow, with scoring, quantisation and rotation from our kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_spin.cpu.patches.edit import replace_statement
from sglang_spin.engine.ledger import Target, is_patched

if TYPE_CHECKING:
    from torch import Tensor

_INDEXER = "sglang.srt.layers.attention.dsa.dsa_indexer"
_UTILS = "sglang.srt.layers.attention.dsa.utils"
_NEVER = "SGLang runs the DSA indexer on CPUs itself"

# one query row over a 64K context is 256 KiB of logits; beyond this the rows are scored in chunks
LOGITS_BUDGET_BYTES = 128 << 20
SCHEDULE_UNITS = 64  # stands for the number of SMs; a batch up to this size is scored in one call


def _target(name: str, expect: str, why: str) -> Target:
    return Target(name=name, expect=expect, why=why, drop_when=_NEVER)


TARGETS: tuple[Target, ...] = (
    _target(f"{_INDEXER}:Indexer.__init__", "95312eb030e28e2b", "reads _is_cuda, which we set"),
    _target(
        f"{_INDEXER}:Indexer.forward_cuda", "d77ad710854a6ba0", "the path we run; reads _is_cuda"
    ),
    _target(
        f"{_INDEXER}:Indexer._get_topk_paged",
        "a6e92a40ad86506e",
        "the path we run; calls our scorer",
    ),
    _target(
        f"{_INDEXER}:Indexer._get_topk_ragged",
        "756b0a06e2f64090",
        "asserts a device index, CPUs have none",
    ),
    _target(
        f"{_INDEXER}:Indexer._get_mqa_logits_budget_bytes",
        "b77d13d5ce7dca2e",
        "asks CUDA for free memory",
    ),
    _target(
        f"{_INDEXER}:Indexer._pad_heads_for_deep_gemm",
        "5fc1632d22b45ab2",
        "pads heads that we need not score",
    ),
    _target(
        f"{_INDEXER}:Indexer._weights_proj_bf16_in_fp32_out",
        "cdbe0cb3d4100d1f",
        "mm(out_dtype=) is CUDA only",
    ),
    _target(
        f"{_INDEXER}:Indexer.forward_native",
        "675f3e62b18b826c",
        "the CPU dispatch ends there, and it raises",
    ),
    _target(
        f"{_INDEXER}:Indexer._store_index_k_cache",
        "06c031093f37b7c7",
        "reads can_use_dsa_fused_store",
    ),
    _target(f"{_INDEXER}:Indexer._get_k_bf16", "e3d558ac22e4fd9b", "reads _is_cuda, which we set"),
    _target(
        "sglang.kernels.ops.kvcache.dsa_fused_store_index_cache:can_use_dsa_fused_store",
        "0e89dd1169824050",
        "tries to compile a CUDA kernel",
    ),
    _target(
        f"{_UTILS}:_fp8_paged_mqa_logits_torch", "805ca9922670067c", "replaced by the decode scorer"
    ),
    _target(
        f"{_UTILS}:_fp8_mqa_logits_torch", "45bb887f3d2686f4", "replaced by the prefill scorer"
    ),
    _target(f"{_UTILS}:resolve_num_sms", "2a7fec0328fa51b2", "asks CUDA for the number of SMs"),
    _target(
        f"{_UTILS}:resolve_paged_mqa_logits_metadata_fn",
        "285ef1d5467c8127",
        "compiles a CUDA schedule kernel",
    ),
    _target(
        "sglang.kernels.ops.quantization.act_quant_triton:act_quant",
        "51f39cdb81a92df3",
        "a Triton kernel",
    ),
    _target(
        "sglang.kernels.ops.quantization.hadamard:hadamard_transform",
        "4169898022462ab3",
        "a CUDA kernel",
    ),
)


def install() -> None:
    """Patch the indexer module, its helpers, and the operators it imports when called."""
    import sglang.kernels.ops.quantization.act_quant_triton as act_quant_module
    import sglang.kernels.ops.quantization.hadamard as hadamard_module
    import sglang.srt.layers.attention.dsa.dsa_indexer as module
    import sglang.srt.layers.attention.dsa.utils as utils
    import sglang.srt.layers.attention.dsa_backend as backend

    from sglang_spin.cpu.kernels.hadamard import hadamard

    for holder in (utils, module, backend):
        holder.resolve_num_sms = lambda: SCHEDULE_UNITS
        holder.resolve_paged_mqa_logits_metadata_fn = lambda: _schedule
    utils._fp8_paged_mqa_logits_torch = _score_paged
    utils._fp8_mqa_logits_torch = _score_ragged
    act_quant_module.act_quant = _act_quant
    hadamard_module.hadamard_transform = hadamard
    module._is_cuda = True
    module.can_use_dsa_fused_store = lambda *_args: False
    _patch_class(module.Indexer)


def _patch_class(indexer: Any) -> None:
    # looked up at call time, so that another plugin's hook on forward_cuda is seen
    indexer.forward_native = lambda self, *args, **options: self.forward_cuda(*args, **options)
    indexer._weights_proj_bf16_in_fp32_out = _head_gates
    indexer._get_mqa_logits_budget_bytes = lambda _self, _device: LOGITS_BUDGET_BYTES
    indexer._pad_heads_for_deep_gemm = staticmethod(lambda q, w: (q, w, q.shape[1]))
    if not is_patched(f"{_INDEXER}:Indexer._get_topk_ragged"):
        replace_statement(
            indexer,
            "_get_topk_ragged",
            'assert device_index is not None, "q_fp8 must be on an indexed CUDA device"',
            "device_index = 0",
        )


def _schedule(context_lens: Tensor, _block: int, units: int) -> Tensor:
    """DeepGEMM's work split has no meaning here; only its shape is looked at."""
    return context_lens.new_zeros((units + 1, 2))


def _head_gates(indexer: Any, x: Tensor) -> Tensor:
    gates: Tensor = x.float() @ indexer.weights_proj.weight.t().float()
    return gates


def _act_quant(x: Tensor, block_size: int = 128, scale_fmt: str | None = None) -> Any:
    from sglang_spin.cpu.kernels.quantization import quantize_blocks

    return quantize_blocks(x, block_size, power_of_two=scale_fmt is not None)


def _score_paged(
    q: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    table: Tensor,
    _schedule_metadata: Tensor,
    max_len: int,
    clean_logits: bool = False,
    indices: None = None,
) -> Tensor:
    """DeepGEMM's fp8_paged_mqa_logits: q [rows, 1, heads, 128], context_lens [rows, 1]."""
    from sglang_spin.cpu.kernels.index_scores import paged_index_scores

    if q.shape[1] != 1 or clean_logits or indices is not None:
        raise NotImplementedError("the CPU scorer takes one query per row, unclean, no indices")
    pages = kv_cache.view(kv_cache.shape[0], -1)
    return paged_index_scores(
        q.squeeze(1), pages, weights, context_lens.reshape(-1), table, max_len
    )


def _score_ragged(
    q: Tensor,
    kv: tuple[Tensor, Tensor],
    weights: Tensor,
    starts: Tensor,
    ends: Tensor,
    clean_logits: bool = False,
    max_seqlen_k: int = 0,  # noqa: ARG001  upstream's signature
) -> Tensor:
    """DeepGEMM's fp8_mqa_logits."""
    from sglang_spin.cpu.kernels.index_scores import ragged_index_scores

    if clean_logits:
        raise NotImplementedError("the CPU scorer leaves columns out of range uninitialised")
    return ragged_index_scores(q, *kv, weights, starts, ends)
