"""The text that a `/metrics` page is made of."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

# a series: its name and its labels in the order of their names
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]

_LINE = re.compile(r"([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass
class MetricsPage:
    """Samples of one page, and how many of its lines were none."""

    samples: dict[SeriesKey, float] = field(default_factory=dict)
    malformed: int = 0


def parse_metrics(text: str, wanted: Callable[[str], bool] = lambda _: True) -> MetricsPage:
    """Read the samples whose name is wanted; a line that is none is counted, never an error.

    Names are looked at before lines are parsed: a server's page is mostly histograms nobody asks
    for. Names stay as they stand there, with `_total` of counters and `_bucket` of histograms.
    """
    page = MetricsPage()
    known: dict[str, bool] = {}
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name not in known:
            known[name] = wanted(name)
        if known[name] and not _take_line(page, line):
            page.malformed += 1
    return page


def _take_line(page: MetricsPage, line: str) -> bool:
    match = _LINE.fullmatch(line)
    if match is None:
        return False
    name, text, number = match.groups()
    labels = _labels(text or "")
    try:
        value = float(number)
    except ValueError:
        return False
    if labels is None:
        return False
    page.samples[name, labels] = value
    return True


def _labels(text: str) -> tuple[tuple[str, str], ...] | None:
    """Labels in the order of their names; None when the text is something else."""
    found, position = [], 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            return None
        found.append((match[1], _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[0]), match[2])))
        position = match.end()
    return tuple(sorted(found))
