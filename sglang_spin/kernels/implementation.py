"""Which implementation of an operator runs. An explicit choice never falls back."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

import torch

Impl = Literal["triton", "numba", "reference"]


def resolve(
    impl: Impl | None, device: torch.device, *, supported: bool = True, numba: bool = False
) -> Impl:
    """impl, or by device where None: Triton on a GPU, if it has a form for this state.

    numba: whether the operator has a numba form; None takes it on a CPU where numba is installed.
    Raises ValueError for an unknown name, for Triton on a CPU outside its interpreter, for numba
    off the CPU, and for either where it is not supported.
    """
    if impl is None:
        if device.type == "cuda":
            return "triton" if supported else "reference"
        usable = numba and supported and find_spec("numba") is not None
        return "numba" if usable else "reference"
    names = ("triton", "numba", "reference") if numba else ("triton", "reference")
    if impl not in names:
        valid = ", ".join(map(repr, names))
        raise ValueError(f"impl must be {valid} or None, got {impl!r}")
    if impl != "reference" and not supported:
        raise ValueError(f"impl {impl!r} has no form for this policy's state; use 'reference'")
    if impl == "numba" and device.type != "cpu":
        raise ValueError(f"impl 'numba' needs tensors on a CPU, got {device}")
    if impl == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"impl 'triton' needs tensors on a GPU, got {device}")
    return impl
