"""From what the engine planned for a class of layers to what a layer is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from sglang_spin.core.budget import Budgets


def by_class(built: Sequence[Tensor | None], budgets: Budgets) -> Sequence[Any]:
    """What was built for each class, for each layer: tensors of one shape, or None for all.

    A gather, because a recorded graph must find a layer's class on the device.
    """
    known = [one for one in built if one is not None]
    if not known:
        return [None] * budgets.layer_class.shape[0]
    return torch.stack(known).index_select(0, budgets.layer_class).unbind()
