"""`tiny-v4`: a DeepSeek-V4 small enough for a CPU, with every kind of layer the real one has.

A sliding-window layer with hash-routed experts, two C4 layers (their indexers select 512 entries of
4 tokens each, so selection starts beyond 2,048 tokens) and a C128 layer; hyper-connections of four
streams. One folder serves SGLang and transformers: both read DeepSeek's own tensor names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_spin.cpu.tiny_folder import source_hash, write_model

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 448,
    "qk_rope_head_dim": 64,
    "v_head_dim": 512,
    "o_lora_rank": 128,
    "o_groups": 2,
    "sliding_window": 128,
    "window_size": 128,
    "compress_ratios": [0, 4, 128, 4],
    "compress_rope_theta": 160000,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "num_hash_layers": 1,
    "n_hash_layers": 1,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 7.0,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}


def fingerprint() -> str:
    """Hash of the generator's source: any change of it gives the model another folder."""
    return source_hash("tiny_v4.py", "tiny_v4_weights.py", "tiny_stream.py")


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (DeepSeek's names) into `folder`."""
    from sglang_spin.cpu.tiny_v4_weights import weights

    write_model(folder, CONFIG, weights())
