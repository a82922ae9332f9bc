"""Begin a step: fold the last scores, predict, select, and write compact page tables."""

from sglang_spin.kernels.fold_select.api import fold_select
from sglang_spin.kernels.fold_select.workspace import Workspace, allocate

__all__ = ["Workspace", "allocate", "fold_select"]
