"""Block-sparse paged index scores over FP8 and FP4 caches."""

from sglang_spin.kernels.paged_logits.api import paged_logits
from sglang_spin.kernels.paged_logits.observing import observed_logits
from sglang_spin.kernels.paged_logits.operands import Placement

__all__ = ["Placement", "observed_logits", "paged_logits"]
