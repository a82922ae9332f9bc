"""`tiny-dsa`: a DeepSeek-V3.2 small enough for a CPU, whose sparse selection still matters.

One folder serves SGLang and transformers: both read the same names from the same safetensors file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_spin.cpu.tiny_folder import source_hash, write_model

SOURCES = ("tiny_dsa.py", "tiny_dsa_weights.py", "tiny_stream.py")

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "head_dim": 64,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}


def fingerprint() -> str:
    """Hash of the generator's source: any change of it gives the model another folder."""
    return source_hash(*SOURCES)


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (bf16, Hugging Face names) into `folder`."""
    from sglang_spin.cpu.tiny_dsa_weights import weights

    write_model(folder, CONFIG, weights())
