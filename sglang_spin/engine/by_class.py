"""From what the engine planned for a class of layers to what a layer is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from sglang_spin.core.budget import Budgets


def by_class(built: Sequence[Tensor], budgets: Budgets) -> Tensor:
    """What was built for each class, for each layer: [layers, ...] from tensors of one shape.

    A gather, because a recorded graph must find a layer's class on the device.
    """
    return torch.stack(list(built)).index_select(0, budgets.layer_class)
