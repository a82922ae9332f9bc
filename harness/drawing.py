"""Figures, axes and colours that all plots share."""

from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

matplotlib.use("Agg")

COLOURS = ("#4c566a", "#2f7ed8", "#d1495b", "#3a9d5d")
SIZE_INCHES = (8.0, 3.6)
PANEL_INCHES = 2.6
SECONDS = "seconds since the first request was sent"


def colour(place: int) -> str:
    """Colour of the arm at this place of the spec."""
    return COLOURS[place % len(COLOURS)]


def new_figure(*titles: str, shared_x: bool = False) -> tuple[Any, list[Any]]:
    """A figure with one panel per title, one above the other."""
    # not pyplot: it keeps every figure in a global list
    width, height = SIZE_INCHES
    size = (width, height if len(titles) == 1 else PANEL_INCHES * len(titles))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(titles), 1, squeeze=False, sharex=shared_x)[:, 0].tolist()
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    return figure, panels


def from_zero(axes: Any, least: float = 0.0) -> None:
    """Let the y axis begin at 0 and end a little above the highest line, or above `least`."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
    axes.set_ylim(0, 1.1 * max(least, *values[np.isfinite(values)], 1e-9))


def as_png(figure: Any) -> bytes:
    """The figure as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
