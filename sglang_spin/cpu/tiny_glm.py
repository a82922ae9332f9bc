"""`tiny-glm`: a GLM-5 in small: `tiny-dsa`, but every second layer has no indexer of its own.

The indexer's rotary pairs are interleaved, as GLM-5's are; the weights are permuted to match, so a
layer that has an indexer scores as in `tiny-dsa` but for the rounding of its fp8 keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_spin.cpu import tiny_dsa
from sglang_spin.cpu.tiny_folder import source_hash, write_model

if TYPE_CHECKING:
    from torch import Tensor

LAYERS: int = tiny_dsa.CONFIG["num_hidden_layers"]
ROPE: int = tiny_dsa.CONFIG["qk_rope_head_dim"]
SHARED = tuple(range(1, LAYERS, 2))  # these reuse the selection of the layer below

CONFIG: dict[str, Any] = tiny_dsa.CONFIG | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "indexer_types": ["shared" if layer in SHARED else "full" for layer in range(LAYERS)],
    "indexer_rope_interleave": True,
    "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
}

_ROTARY = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias")


def fingerprint() -> str:
    """Hash of the generator's source and of the one it rests on."""
    return source_hash("tiny_glm.py", *tiny_dsa.SOURCES)


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (bf16, Hugging Face names) into `folder`."""
    write_model(folder, CONFIG, weights())


def weights() -> dict[str, Tensor]:
    """All parameters by Hugging Face name: bf16, the routing bias fp32. Same bits every time."""
    from sglang_spin.cpu.tiny_dsa_weights import weights as base

    dropped = tuple(f"model.layers.{layer}.self_attn.indexer." for layer in SHARED)
    kept = {name: each for name, each in base().items() if not name.startswith(dropped)}
    for name in kept:
        if ".indexer." in name and name.endswith(_ROTARY):
            kept[name] = _interleaved(kept[name])
    return kept


def _interleaved(tensor: Tensor) -> Tensor:
    """Reorder each head's first ROPE rows from pairs (i, i + ROPE / 2) to pairs (2i, 2i + 1)."""
    import torch

    width: int = tiny_dsa.CONFIG["index_head_dim"]
    order = torch.arange(ROPE).view(2, ROPE // 2).T.flatten()
    order = torch.cat([order, torch.arange(ROPE, width)])
    heads = tensor.view(-1, width, *tensor.shape[1:])
    return heads[:, order].flatten(0, 1).contiguous()
