"""Block-sparse paged index scores over FP8 and FP4 caches."""

from sglang_spin.kernels.paged_logits.api import paged_logits

__all__ = ["paged_logits"]
