"""Measure what the prediction would have missed, in the rows that a step scores in full for it."""

from sglang_spin.kernels.audit.api import audit

__all__ = ["audit"]
