"""The rest of the V4 model: hyper-connections, experts, weights held in fp32, and its options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sglang_spin.cpu.patches.edit import replace_statement
from sglang_spin.engine.ledger import Target

if TYPE_CHECKING:
    from torch import Tensor

_MODEL = "sglang.srt.models.deepseek_v4"
_MHC = "sglang.kernels.ops.layernorm"
_CPU = "SGLang serves DeepSeek-V4 on CPUs"

TARGETS: tuple[Target, ...] = (
    Target(f"{_MODEL}:get_mhc_ops", "9805b07e171af725", "its operators are TileLang kernels", _CPU),
    Target(
        f"{_MODEL}:DeepseekV4ForCausalLM.post_load_weights",
        "2a6490a209d6285a",
        "bf16 parameters",
        _CPU,
    ),
    Target(f"{_MHC}.mhc:mhc_combine", "0b823f7eaf0f9a08", "a Triton kernel", _CPU),
    Target(f"{_MHC}.mhc_head:fused_hc_head", "ac5c19450195dff5", "a Triton kernel", _CPU),
    Target(
        "sglang.kernels.ops.activation.silu_and_mul_clamp:silu_and_mul_clamp",
        "abeb671299ffabce",
        "a CUDA kernel",
        _CPU,
    ),
    Target(
        "sglang.srt.layers.moe.fused_moe_native:moe_forward_native",
        "3b87486252ff1ec7",
        "leaves the SwiGLU clamp of routed experts out",
        "upstream's torch experts clamp",
    ),
    Target(
        "sglang.srt.mem_cache.kv_cache_configurator:KVCacheConfigurator.configure",
        "547c99790fdc1f2d",
        "refuses fp8 caches of MLA models on CPUs",
        _CPU,
    ),
    Target(
        "sglang.srt.layers.rotary_embedding.factory:get_rope_cpu",
        "a4218bd39bcb433c",
        "asserts YaRN, which V4's sliding-window layers do without",
        _CPU,
    ),
)


def install() -> None:
    """Patch the model's module and the operators it takes when it runs."""
    import sglang.kernels.ops.activation.silu_and_mul_clamp as activation
    import sglang.kernels.ops.layernorm.mhc as mhc
    import sglang.kernels.ops.layernorm.mhc_head as mhc_head
    import sglang.srt.layers.moe.fused_moe_native as experts
    import sglang.srt.layers.rotary_embedding.factory as rope
    import sglang.srt.models.deepseek_v2 as v2
    import sglang.srt.models.deepseek_v4 as model
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    model.get_mhc_ops = lambda: SimpleNamespace(hc_split_sinkhorn=_mixing)
    mhc.mhc_combine = _combine
    mhc_head.fused_hc_head = model.hc_head_torch
    for holder in (activation, v2):
        holder.silu_and_mul_clamp = _silu_clamped
    experts._clamped = _clamped
    replace_statement(
        experts,
        "moe_forward_native",
        "            gate_up = act(gate_up)\n",
        "            gate_up = act(_clamped(gate_up, moe_runner_config.swiglu_limit))\n",
    )
    replace_statement(
        KVCacheConfigurator,
        "configure",
        "if current_platform.is_cpu() and self.kv_cache_dtype == torch.float8_e4m3fn:",
        "if False:",
    )
    rope.get_rope_cpu = _rope_or_plain(rope)
    _hold_weights_in_fp32(model.DeepseekV4ForCausalLM)


def _hold_weights_in_fp32(architecture: Any) -> None:
    """Parameters that upstream fixes at bf16 meet fp32 activations here; widening is exact."""
    import torch

    original = architecture.post_load_weights

    def post_load_weights(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        for parameter in self.parameters():
            if parameter.dtype == torch.bfloat16:
                parameter.data = parameter.data.float()

    architecture.post_load_weights = post_load_weights


def _rope_or_plain(factory: Any) -> Any:
    original = factory.get_rope_cpu

    def get_rope_cpu(
        head_size: int,
        rotary_dim: int,
        max_position: int,
        base: int,
        is_neox_style: bool = True,
        rope_scaling: dict[str, Any] | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        shape = (head_size, rotary_dim, max_position, base, is_neox_style)
        if rope_scaling is None:
            return factory.get_rope(*shape, rope_scaling)
        return original(*shape, rope_scaling, *rest, **options)

    return get_rope_cpu


def _mixing(
    mixes: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """hc_split_sinkhorn: mixes [tokens, 1, (2 + n) * n]; the results keep the middle dimension."""
    from sglang_spin.cpu.kernels.v4.hyper import mixing_weights

    parts = mixing_weights(mixes.squeeze(1), scale, base, streams, iterations, eps)
    return parts[0].unsqueeze(1), parts[1].unsqueeze(1), parts[2].unsqueeze(1)


def _combine(x_flat: Tensor, pre: Tensor, hc: int, out_dtype: Any) -> Tensor:
    collapsed: Tensor = (pre.unsqueeze(-1) * x_flat.view(*x_flat.shape[:-1], hc, -1)).sum(1)
    return collapsed.to(out_dtype)


def _clamped(gate_up: Tensor, limit: float | None) -> Tensor:
    import torch

    if limit is None:
        return gate_up
    gate, up = gate_up.chunk(2, -1)
    return torch.cat([gate.clamp(max=limit), up.clamp(-limit, limit)], -1)


def _silu_clamped(gate_up: Tensor, output: Tensor, swiglu_limit: float) -> None:
    import torch

    gate, up = _clamped(gate_up.float(), swiglu_limit).chunk(2, -1)
    output.copy_(torch.nn.functional.silu(gate) * up)
