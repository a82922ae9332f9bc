"""Models and GPUs that SPIN would serve wrongly or not at all.

docs/support.md repeats both tables; a test keeps them equal.
"""

from __future__ import annotations

from typing import Any

from sglang_spin.engine.refusals import Refusal, first_refusal

MODELS: tuple[Refusal, ...] = (
    Refusal(
        "a model with pooled index keys (KPool, index_kpool above 1)",
        lambda c: (getattr(c, "index_kpool", 1) or 1) > 1,
        "its pages hold 64 pooled entries and its top-k is another",
    ),
    Refusal(
        "a model with forced index tokens (index_init_tokens, index_local_tokens)",
        lambda c: bool(getattr(c, "index_init_tokens", 0) or getattr(c, "index_local_tokens", 0)),
        "the forced columns are counted in the full row, not in the compact one",
    ),
    Refusal(
        "DeepSeek-V4.1",
        lambda c: getattr(c, "model_type", "") == "deepseek_v41",
        "its indexer filters candidates across layers already",
    ),
)

MACHINES: tuple[Refusal, ...] = (
    Refusal(
        "an AMD GPU (HIP)",
        lambda _: _hip(),
        "its indexer selects with other kernels",
    ),
    Refusal(
        "a GPU of compute capability other than 9.x and 10.x (SM120 among them)",
        lambda _: _capability() not in (None, 9, 10),
        "SGLang turns the paged top-k v2 off there",
    ),
)


def model_refusal(config: Any) -> str | None:
    """The first reason not to serve a model with this Hugging Face config here, or None."""
    return first_refusal(config, (*MODELS, *MACHINES))


def _hip() -> bool:
    import torch

    return torch.version.hip is not None


def _capability() -> int | None:
    import torch

    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None
