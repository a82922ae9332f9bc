"""ITL against sparsity, as a picture."""

from __future__ import annotations

from pathlib import Path

from sglang_spin.lab.cost import published
from sglang_spin.lab.cost.estimate import SCENARIOS, StepModel
from sglang_spin.lab.cost.report import LABEL, published_run

FORMATS = (".png", ".svg", ".pdf")
_COLOURS = ("#d1495b", "#e0a030", "#2f7ed8")
_SPARSITIES = [percent / 100 for percent in range(0, 71, 2)]


def draw(step: StepModel, path: Path) -> None:
    """Write the picture; the format follows the suffix. Raises OSError where it cannot."""
    from matplotlib.figure import Figure  # half a second to import, and only this needs it

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    points = step.points(_SPARSITIES)
    axes.axhline(step.base(step.blocks) * 1e3, color="#4c566a", linestyle="--", label="all-keep")
    for (name, meaning), colour in zip(SCENARIOS.items(), _COLOURS, strict=True):
        itl = [point.outcomes[name].itl * 1e3 for point in points]
        axes.plot(
            [point.sparsity for point in points], itl, color=colour, label=f"{name}: {meaning}"
        )
    known = [run for run in published.RUNS if published_run(step, run.sparsity)]
    if known:
        shares = [run.sparsity for run in known]
        axes.plot(shares, [run.itl * 1e3 for run in known], "ko", label="published")
    load = step.load
    place = (
        f"{step.model.name}, {load.tp} x {step.gpu.name}, {load.batch} x {load.context:,} tokens"
    )
    axes.set(title=f"{LABEL}: {place}", xlabel="block sparsity", ylabel="ITL, ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
