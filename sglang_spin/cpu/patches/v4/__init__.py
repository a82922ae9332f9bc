"""What DeepSeek-V4 needs beyond DeepSeek-V3.2 on a machine without a GPU."""

from sglang_spin.cpu.patches.v4 import attention, chat, compressor, indexer, model

__all__ = ["MODULES", "chat"]

MODULES = (attention, compressor, indexer, model)  # after topk, whose kernels they hand on
