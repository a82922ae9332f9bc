"""Random divisions of a budget among layers."""

from __future__ import annotations

import numpy as np

from sglang_spin.core.budget import CLASSES, Allotment


def random_allotment(rng: np.random.Generator, layers: int) -> Allotment:
    """Up to CLASSES sparsities, every one of them some layer's.

    Half of the time they exceed the total, so that the largest budgets are cut.
    """
    count = int(rng.integers(1, min(CLASSES, layers) + 1))
    choice = rng.choice(np.arange(20), count, replace=False) / 20
    by_layer = [float(s) for s in rng.permutation([*choice, *rng.choice(choice, layers - count)])]
    classes = sorted(set(by_layer), reverse=True)
    mean = round(sum(by_layer) / layers, 4)
    sparsity = min(0.95, mean + float(rng.choice([0.0, 0.1])))
    return Allotment(sparsity, tuple(classes), tuple(classes.index(s) for s in by_layer))
