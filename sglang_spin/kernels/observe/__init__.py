"""End a layer's scoring: stash its scores for the next step's fold."""

from sglang_spin.kernels.observe.api import observe

__all__ = ["observe"]
