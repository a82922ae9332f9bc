"""Stand-in for `torchvision`, see sglang_spin.cpu.absent."""

from sglang_spin.cpu.absent import attributes_of

__getattr__ = attributes_of(__name__)

__version__ = "0.0.0"
