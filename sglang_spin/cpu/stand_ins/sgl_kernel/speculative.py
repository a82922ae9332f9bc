"""Stand-in for `sgl_kernel.speculative`, see sglang_spin.cpu.absent."""

from sglang_spin.cpu.absent import attributes_of

__getattr__ = attributes_of(__name__)
