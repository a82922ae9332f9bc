"""Shapes of the models, as far as the bytes of a decode step depend on them."""

from __future__ import annotations

from dataclasses import dataclass

FP8 = 1.0  # bytes per parameter; block scales are below 0.1 % and left out
MXFP4 = 0.5 + 1 / 32  # one scale byte for 32 values


@dataclass(frozen=True)
class ModelShape:
    """One model.

    compress_ratio: tokens per index entry, which is also one KV entry of an indexer layer.
    indexer_layers: layers that score. pooled_layers: layers that attend every one of their entries,
    each pooled from pooled_ratio tokens. window: newest tokens every layer attends besides.
    kv_bytes: one KV entry. latent_dim, value_dim: of the absorbed attention. parameters, active:
    in all, and used by one token. *_bytes: bytes per parameter. positions: longest context.
    """

    name: str
    layers: int
    indexer_layers: int
    index_heads: int
    index_dim: int
    index_topk: int
    compress_ratio: int
    pooled_layers: int
    pooled_ratio: int
    window: int
    kv_bytes: int
    attention_heads: int
    latent_dim: int
    value_dim: int
    hidden: int
    moe_layers: int
    experts: int
    experts_per_token: int
    expert_width: int
    parameters: float
    active: float
    expert_bytes: float
    other_bytes: float
    positions: int
    assumed: str

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts: gate, up and down projections."""
        return self.moe_layers * self.experts * 3 * self.hidden * self.expert_width


_V4_KV = 448 + 2 * 64 + 8  # fp8 latent, bf16 rope, scales: SGLang's dsv4 pool
_DSA_KV = 512 + 2 * 64 + 16  # the same of the dsa pool with an fp8 cache

V4_FLASH = ModelShape(
    name="deepseek-v4-flash",
    layers=43, indexer_layers=21, index_heads=64, index_dim=128, index_topk=512, compress_ratio=4,
    pooled_layers=20, pooled_ratio=128, window=128, kv_bytes=_V4_KV,
    attention_heads=64, latent_dim=512, value_dim=512, hidden=4096,
    moe_layers=43, experts=256, experts_per_token=6, expert_width=2048,
    parameters=284e9, active=13e9, expert_bytes=MXFP4, other_bytes=FP8, positions=1_048_576,
    assumed="routed experts MXFP4, everything else fp8; KV entry 584 B as in SGLang 0.5.23",
)  # fmt: skip
V4_PRO = ModelShape(
    name="deepseek-v4-pro",
    layers=61, indexer_layers=30, index_heads=64, index_dim=128, index_topk=1024, compress_ratio=4,
    pooled_layers=31, pooled_ratio=128, window=128, kv_bytes=_V4_KV,
    attention_heads=128, latent_dim=512, value_dim=512, hidden=7168,
    moe_layers=61, experts=384, experts_per_token=6, expert_width=3072,
    parameters=1.6e12, active=49e9, expert_bytes=MXFP4, other_bytes=FP8, positions=1_048_576,
    assumed="as V4-Flash; index heads, 30 indexer and 31 pooled layers inferred, not read",
)  # fmt: skip
V32 = ModelShape(
    name="deepseek-v3.2",
    layers=61, indexer_layers=61, index_heads=64, index_dim=128, index_topk=2048, compress_ratio=1,
    pooled_layers=0, pooled_ratio=1, window=0, kv_bytes=_DSA_KV,
    attention_heads=128, latent_dim=576, value_dim=512, hidden=7168,
    moe_layers=58, experts=256, experts_per_token=8, expert_width=2048,
    parameters=671e9, active=37e9, expert_bytes=FP8, other_bytes=FP8, positions=163_840,
    assumed="fp8 KV cache, 656 B an entry (SGLang keeps bf16 on Hopper unless told otherwise)",
)  # fmt: skip
GLM_5 = ModelShape(
    name="glm-5",
    layers=78, indexer_layers=78, index_heads=32, index_dim=128, index_topk=2048, compress_ratio=1,
    pooled_layers=0, pooled_ratio=1, window=0, kv_bytes=_DSA_KV,
    attention_heads=64, latent_dim=576, value_dim=512, hidden=6144,
    moe_layers=75, experts=256, experts_per_token=8, expert_width=2048,
    parameters=744e9, active=40e9, expert_bytes=FP8, other_bytes=FP8, positions=202_752,
    assumed="fp8 weights and KV cache; every layer has its own indexer (GLM-5.2 shares some)",
)  # fmt: skip

MODELS = {model.name: model for model in (V4_FLASH, V4_PRO, V32, GLM_5)}
