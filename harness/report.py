"""`report.html`: one file, no outside request, everything that came from a server escaped."""

import base64
from collections.abc import Mapping
from typing import Any

import jinja2

from harness.report_template import TEMPLATE


def render_report(
    summary: Mapping[str, Any],
    spec_yaml: str,
    environment: Mapping[str, Any],
    plots: Mapping[str, bytes],
) -> str:
    """The whole page."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template.filters.update(number=_number, share=_share)
    images = {name: base64.b64encode(png).decode() for name, png in plots.items()}
    return template.from_string(TEMPLATE).render(
        summary=summary, spec_yaml=spec_yaml, env=environment, images=images
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"
